"""Move, import, repair and re-encrypt the state of a project as a whole.

`holding.py` keeps others out meanwhile, `sealing.py` reads and writes a stack in clear.
"""
