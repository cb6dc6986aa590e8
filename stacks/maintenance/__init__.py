"""Maintenance of nodes that are up: drain, reboot, replace, reset of GPUs, wave by wave, with a journal.

Start with `plan.py` (pure: which nodes, which waves, which runs) and `drive.py` (carries a plan out). What a
verb does to a node has a module of its own: `drain.py`, `reboot.py`, `replace.py`. `look.py` asks the nodes.
"""
