"""The language: YAML text to typed, immutable models, and every mistake pointed at by file, line and column.

Imports nothing of orch but itself, and looks at nothing outside the files it is given. Start at
`loader/load.py` (`load_paths`), then `models/` (what can be written), `grammar/` (how a value reads) and
`rules/` (what must hold together). `document/` has what rules and loader share: nodes, places, drafts.
"""
