"""The life of a run: `lifecycle.py` is the entry, `driver.py` carries it out with `ranks.py`,
`decide.py` (pure) says what is next, `follow.py` and `read_logs.py` only look.
"""
