"""Pipelines: workflows for a project, and what they post to GitHub and GitLab.

`forge.py` is what a forge is asked for, `github.py` and `gitlab.py` are the two; `comments.py`, `findings.py`
and `drift.py` decide what is posted. `workflows.py` writes the workflows. Start reading at `cli/ci.py`.
"""
