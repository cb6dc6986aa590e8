"""What nodes and jobs use: CPU, memory, network, accelerators.

`reading.py` looks at nodes once, `figures.py` makes two looks to figures of the time between them.
`sampling.py` has the ledger keep looks at runs, `history.py` makes those to figures over time.
"""
