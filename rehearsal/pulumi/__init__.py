"""What a simulated provider does with the engine's requests, whichever cloud it serves.

`schema.py` reads a cloud's table of properties, `differences.py` compares, `base.py` has check, diff,
previews and refreshes on plain dictionaries, `provider.py` speaks to the engine. A cloud adds its table, its
types and how it calls its account: `bridge/` is AWS's, `gcp_bridge/` GCP's.
"""
