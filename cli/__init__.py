"""What a person types: one module per group of verbs.

`main.py` is the table of verbs and imports nothing heavy; `outcome.py` turns errors into text and exit codes;
`plans.py`, `run_output.py` and the `_table` modules render. No logic worth testing alone lives here.
"""
