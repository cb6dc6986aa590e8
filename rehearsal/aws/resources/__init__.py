"""The package `aws` of Pulumi on a simulated account: what the real provider does with each resource type.

`resources.yml` has the property names and what replaces; `kinds.py` says what a type is, and network.py,
groups.py, compute.py and iam.py make, read, change and remove the types by API calls. Start reading at
`kinds.py`.
"""
