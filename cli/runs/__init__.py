"""Verbs on runs: `run.py` starts and follows them, `background.py` leaves them alone, `copy.py` copies."""
