"""What a person types: one module per group of verbs.

`verbs.py` is the table of verbs. The modules that it names are loaded for `-h` and for completion of options
too, so they import what is heavy in the functions that need it. Folders of verbs do not import each other.
What they share, from the top: `maintenance/`, `driver/`, `targets/`, `output/`, `options.py`, and
`errors.py`, which turns errors into text and exit codes. No logic worth testing alone lives here.
"""
