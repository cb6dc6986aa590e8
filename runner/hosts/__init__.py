"""Existing servers as hosts of a fleet: what is true of them, what they lack, how they see each other.

Only `registration.py` has anything put on a host; the rest reads, and judges in pure functions. Imports the
runner's connector and `spec`. Start with `survey.py` (what is there), then `checks/` (what is required).
"""
