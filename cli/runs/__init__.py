"""Verbs on runs: `run.py` starts, lists and follows them, `copy.py` copies files from and to them."""
