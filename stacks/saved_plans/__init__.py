"""Saved plans: `preview --out` writes one, `up --plan` applies exactly that or refuses.

Start at `plans/saved_plan.py`, the file; `applying.py` plans again, compares and applies.
"""
