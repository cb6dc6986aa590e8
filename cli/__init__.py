"""What a person types: one module per group of verbs.

`main.py` is the table of verbs. The modules that it names are loaded for `-h` and for completion of options
too, so they import what is heavy in the functions that need it. `errors.py` turns errors into text and exit
codes; `output/` renders. No logic worth testing alone lives here.
"""
