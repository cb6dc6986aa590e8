"""Resources of our own provider that fleets of several backends have."""

from __future__ import annotations

import pulumi


class Keys(pulumi.CustomResource):
    """`orch:index:Keys`: the client's key pair and the seed of the host keys."""

    client_private_key: pulumi.Output[str]
    client_public_key: pulumi.Output[str]
    host_seed: pulumi.Output[str]

    def __init__(self, name: str, *, opts: pulumi.ResourceOptions) -> None:
        props = {"name": name, "client_private_key": None, "client_public_key": None, "host_seed": None}
        super().__init__("orch:index:Keys", name, props, opts)
