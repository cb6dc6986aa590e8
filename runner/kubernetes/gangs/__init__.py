"""Gangs: the pods of one attempt of a run, which start together.

`request.py` (pure) says what a run asks for, `objects.py` (pure) writes its objects, `gangs.py` asks an API
server for them. `documents.py`, `reasons.py` and `look.py` (pure) tell what has come of one, and why.
Imported by `orch.runner.runs`, and `fabric.py` by the compiler of runs.
"""
