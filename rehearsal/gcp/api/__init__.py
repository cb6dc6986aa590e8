"""Rules of each method of the Compute Engine API; `methods.py` defines a method.

Requests and responses have the shapes of the REST API. Start reading at `compute/instances.py`.
"""
