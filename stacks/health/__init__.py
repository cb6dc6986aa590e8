"""The health of fleets: nodes are examined, what is found is kept, and nodes that failed are replaced.

`watch` is the entry. What is read of a node and what it means is `runner/health`.
"""
