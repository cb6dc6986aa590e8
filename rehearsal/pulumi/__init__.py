"""What a simulated provider does with the engine's requests, whichever cloud it serves.

`schema.py` reads a cloud's table of properties, `differences.py` compares, `resources.py` has check, diff,
previews and refreshes on plain dictionaries, `serving.py` speaks to the engine. A cloud adds its table, its
types and how it calls its account: `aws/resources/` is AWS's, `gcp/resources/` GCP's.
"""
