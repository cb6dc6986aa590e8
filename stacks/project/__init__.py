"""The project of a folder: its root, `orch.yml`, `.orch`, `orch.lock` and the passphrase of its state.

Start at `project.py`. Nothing here calls the engine.
"""
