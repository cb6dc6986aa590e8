"""Bring a fleet up where there is capacity, all of its nodes or none, and keep nodes with runs.

Start at `operations.py`: preview, up, down, refresh, drift.
"""
