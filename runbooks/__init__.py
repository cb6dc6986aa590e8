"""Runbooks: Markdown that a person can follow by hand, and orch can run step by step.

Takes text, the table of verbs, answers; gives a runbook, the final words of its steps, and a run of it in the
project's journal of changes. Start at `parse.py` (text to `model.py`), then `engine.py` (a run). Only
`process.py` starts programs, and only the command line asks and shows.
"""
