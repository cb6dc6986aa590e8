"""The backend of existing hosts: `facts.py` asks them, `plan.py` decides, `resources.py` registers.

The hosts are asked on every plan, for a plan must say which of them are fit to be taken.
"""
