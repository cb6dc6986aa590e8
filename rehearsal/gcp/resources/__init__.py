"""The package `gcp` of Pulumi on a simulated account: what the real provider does with each resource type.

`resources.yml` has the property names and what replaces; `calls.py` speaks to the account and words its
errors as the real provider does; `networks.py`, `instances.py`, `instance_groups.py` and their neighbours
make, read, change and remove the types. Start reading at `kinds.py`.
"""
