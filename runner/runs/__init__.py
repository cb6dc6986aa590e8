"""The life of a run: `lifecycle.py` has the verbs, `driver.py` carries a run out with `ranks.py`,
`decide.py` (pure) decides the next act, `follow.py` and `read_logs.py` only read.
"""
