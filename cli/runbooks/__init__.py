"""`orch runbook`: the verbs, what they show and ask, and which words of a runbook are verbs of orch.

Start at `runbook.py`; the engine is `orch/runbooks/`.
"""
