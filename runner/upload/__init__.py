"""What a task takes to its nodes: `files` and `repos`.

`selection` says what goes of files and `repository` what of a repository, `snapshot` keeps it here as it was
when the run was submitted, `tree` describes it by its content, `send` brings a node what it lacks of it.

Imports of the runner: `launch`, `node`, `events`; nothing of `runs`. Start with `tree.py`.
"""
