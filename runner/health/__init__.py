"""Whether a node is fit for jobs: what its accelerators, links, disks and kernel tell, and what that means.

`examination` asks nodes, over their connectors; `gpus` mends NVIDIA's; the other modules are pure readers of
what tools print. Start with `examination`, then `findings`. Imports runner/node and spec.
"""
