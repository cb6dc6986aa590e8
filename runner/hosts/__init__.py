"""Existing servers as hosts of a fleet: their facts, the checks they must pass, the network between them.

Only `registration.py` changes a host; everything else reads facts and judges them in pure functions. Imports
the runner's connector and `spec`. Start with `survey.py` (the facts), then `checks/` (the requirements).
"""
