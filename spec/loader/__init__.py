"""From files to documents: text, YAML, references, models, and each mistake back at its place."""
