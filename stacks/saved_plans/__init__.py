"""Saved plans: `preview --out` writes one, `up --plan` applies exactly that or refuses.

Start at `record.py`, the file; `applying.py` is the way of a stack from there to the engine.
"""
