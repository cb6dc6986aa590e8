"""What a person types: one module per group of verbs.

`main.py` and `verbs.py` are the table of verbs and import nothing heavy; `errors.py` turns errors into
text and exit codes; `output/` renders. No logic worth testing alone lives here.
"""
