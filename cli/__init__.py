"""What a person types: one module per group of verbs.

`main.py` is the table of verbs and imports nothing heavy; `outcome.py` turns errors into text and exit codes;
`tables.py` and `plans.py` render. No logic worth testing alone lives here.
"""
