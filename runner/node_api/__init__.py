"""The interface to a node: commands, the connector that carries them, and the records that a node keeps.

Claims, cordon, verdict and first boot are files on the node, which every client reads. `ssh/` and
`kubernetes/` implement the connector.
"""
