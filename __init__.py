"""orch: GPU clusters as code.

One YAML file becomes an interconnected cluster (`stacks`, `components`, `providers`) and runs distributed
jobs on it (`runner`). Start reading at `spec/` (the language), then `stacks/provisioning/operations.py`;
docs/architecture.md draws the whole.
"""

__version__ = "0.1.0"
