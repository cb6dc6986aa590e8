"""The plan of a run as data: what each rank runs, its environment, its name. Nothing here acts or reads."""
