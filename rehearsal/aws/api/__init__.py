"""AWS: the rules of each API call, by service. `ACTIONS` is all of them; `registry.py` says what an action
is.

Parameters and results have the shapes of botocore's service models. Start reading at `launch.py`
(RunInstances).
"""

from orch.rehearsal.aws.api import (account_services, iam, tags)
from orch.rehearsal.aws.api.network import (addresses, endpoints, gateways, security_groups, vpcs, routes, subnets)
from orch.rehearsal.aws.api.compute import (instances, launch, offerings, placement_groups, reservations, launch_templates)
from orch.rehearsal.aws.api.actions import ACTIONS

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
