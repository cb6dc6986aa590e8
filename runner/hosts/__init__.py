"""Existing servers as hosts of a fleet: the way to them, their keys, what is true of them, what they lack.

Only `registration.py` has anything put on a host; the rest reads, and judges in pure functions. Imports the
runner's connector and `spec`. Start with `targets.py` (who and how), `survey.py` (what is there), `checks.py`
(what is required).
"""
