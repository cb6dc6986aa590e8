"""One stack: its recorded state, its tags, who holds it, and commands of the engine that are no operations.

Start at `state.py`. `leases.py` and `locks.py` say who may change it; `command.py` looks at leases first,
`unguarded.py` is below them.
"""
