"""GCP: the rules of each method of the Compute Engine API; `registry.py` says what a method is.

Requests and answers have the shapes of the REST API. Start reading at `cloud.py`, then `instances.py`.
"""
