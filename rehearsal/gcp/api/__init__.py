"""GCP: the rules of each method of the Compute Engine API; `methods.py` says what a method is.

Requests and answers have the shapes of the REST API. Start reading at `compute/instances.py`.
"""
