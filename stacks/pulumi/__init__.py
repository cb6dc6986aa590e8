"""Guarded operations of the engine: they check leases, accounts and killed calls before resources change.

Start at `operation.py`; progress goes to a `progress.Listener`. `recovery.py` and `orphans.py` clear what a
killed call left; `leasing.py` takes leases.
"""
