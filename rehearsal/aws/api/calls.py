"""AWS: the rules of each API call, by service. `ACTIONS` is all of them; `actions.py` says what an action
is.

Parameters and results have the shapes of botocore's service models. Start reading at `launch.py`
(RunInstances).
"""

from orch.rehearsal.aws.api import account_services, iam, tags
from orch.rehearsal.aws.api.actions import ACTIONS
from orch.rehearsal.aws.api.compute import (
    consoles,
    instances,
    launch,
    launch_templates,
    offerings,
    placement_groups,
    reservations,
)
from orch.rehearsal.aws.api.network import (
    addresses,
    endpoints,
    gateways,
    routes,
    security_groups,
    subnets,
    vpcs,
)

__all__ = [
    "ACTIONS",
    "account_services",
    "addresses",
    "consoles",
    "endpoints",
    "gateways",
    "iam",
    "instances",
    "launch",
    "launch_templates",
    "offerings",
    "placement_groups",
    "reservations",
    "routes",
    "security_groups",
    "subnets",
    "tags",
    "vpcs",
]
