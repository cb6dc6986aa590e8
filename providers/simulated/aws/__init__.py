"""AWS: the rules of each API call, by service. `ACTIONS` is all of them; `registry.py` says what an action
is.

Parameters and results have the shapes of botocore's service models. Start reading at `launch.py`
(RunInstances).
"""

from orch.providers.simulated.aws import (
    account,
    addresses,
    endpoints,
    gateways,
    groups,
    iam,
    instances,
    launch,
    network,
    offerings,
    placement,
    reservations,
    routing,
    subnets,
    tags,
    templates,
)
from orch.providers.simulated.aws.registry import ACTIONS

__all__ = [
    "ACTIONS",
    "account",
    "addresses",
    "endpoints",
    "gateways",
    "groups",
    "iam",
    "instances",
    "launch",
    "network",
    "offerings",
    "placement",
    "reservations",
    "routing",
    "subnets",
    "tags",
    "templates",
]
