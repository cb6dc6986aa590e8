"""Verification of a fleet: what its nodes and the network between them really reach.

`job/` goes to the nodes and runs there, `results.py` reads what it prints, `judge.py` compares that with
floors and former results; all three are pure but for the program. Start reading at `judge.py`.
"""
