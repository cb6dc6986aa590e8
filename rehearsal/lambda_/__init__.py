"""A simulated Lambda account: `account.py` is what it has, `api/` what its calls do, `data/` its tables."""
