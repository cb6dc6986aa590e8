"""The services of Nebius by kind of resource: their methods, and names for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""A message as JSON, with the names of the proto."""


@dataclass(frozen=True)
class Method:
    """A method of a service of the API."""

    package: str
    service: str
    name: str


@dataclass(frozen=True)
class Kind:
    """A kind of resource. `package` and `service` are the API's; `words`: as people call it."""

    package: str
    service: str
    words: str

    def method(self, name: str) -> Method:
        return Method(self.package, self.service, name)


NETWORK = Kind("vpc.v1", "NetworkService", "network")
SUBNET = Kind("vpc.v1", "SubnetService", "subnet")
SECURITY_GROUP = Kind("vpc.v1", "SecurityGroupService", "security group")
SECURITY_RULE = Kind("vpc.v1", "SecurityRuleService", "security rule")
GPU_CLUSTER = Kind("compute.v1", "GpuClusterService", "GPU cluster")
DISK = Kind("compute.v1", "DiskService", "disk")
IMAGE = Kind("compute.v1", "ImageService", "image")
INSTANCE = Kind("compute.v1", "InstanceService", "instance")
QUOTA = Kind("quotas.v1", "QuotaAllowanceService", "quota")
