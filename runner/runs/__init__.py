"""The life of a run: `lifecycle.py` is the entry, `driver.py` carries it out,
`decide.py` (pure) says what is next."""
