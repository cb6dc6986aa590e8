"""The FleetState of a GCP fleet: the plan, joined with the values that GCP assigned. Pure.

A node without a public address is reached through a tunnel of Identity-Aware Proxy (IAP), by gcloud with the
credentials that made the fleet: the state holds the command, the caller's environment the credentials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.components.cloud.machines import fleet_state as cloud_state
from orch.components.cloud.machines.host_keys import HostKey
from orch.components.cloud.machines.ssh_access import command, with_environment
from orch.components.cloud.plan import Node
from orch.components.gcp.account.client import carries_key
from orch.components.gcp.account.facts import Member
from orch.components.gcp.plan import GcpPlan
from orch.spec.models.backends.credentials import GcpServiceAccountCreds
from orch.spec.models.backends.gcp import GcpSettings

# A node that is gone may be a restart after maintenance, which takes minutes.
UNREACHABLE_GRACE_S = 600.0

# Variables that gcloud prefers to the key file.
_OVERRIDING_VARIABLES = ("CLOUDSDK_AUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
_KEY_FILE_VARIABLE = "ORCH_GCP_KEY_FILE"


@dataclass(frozen=True)
class NodeInstance:
    """The instance of one node, with the values that GCP assigned.

    `key`: the name from which an earlier version derived the instance's host key, which is in its own user
    data; None: the instance made its key itself. `host`: its physical host (block, subblock, host), outermost
    first.
    """

    name: str
    id: str
    internal: str
    public: str | None
    key: str | None
    host: tuple[str, ...] = ()

    @classmethod
    def of_member(cls, member: Member, plan: GcpPlan) -> NodeInstance:
        """A member of a managed group. Members that an earlier version made share one host key."""
        key = f"{plan.fleet}-group" if member.keyed else None
        return cls(member.name, member.id, member.address, member.public, key, member.host)

    @classmethod
    def of_resource(
        cls, node: Node, id: str, name: str, interfaces: Any, metadata: Any, *, host: tuple[str, ...]
    ) -> NodeInstance:
        """An instance that is a resource of its own, by the outputs of that."""
        key = node.name if carries_key(str((metadata or {}).get("user-data", ""))) else None
        internal = str(interface_address(interfaces, public=False) or "")
        return cls(name, id, internal, interface_address(interfaces, public=True), key, host)


def interface_address(interfaces: Any, *, public: bool) -> str | None:
    """The address of the first interface; `interfaces` are an output of the provider."""
    if not public:
        return _field(interfaces[0], "network_ip")
    configs = _field(interfaces[0], "access_configs") or ()
    return next((str(_field(each, "nat_ip")) for each in configs if _field(each, "nat_ip")), None)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name)


@dataclass(frozen=True)
class FleetOutputs:
    """What GCP assigned to the resources of a fleet.

    `machines`: in order of the nodes. `host_keys`: by the instance's id; an instance without one is not a
    node yet. `bastion`: its name and address.
    """

    seed: str
    machines: Sequence[NodeInstance]
    host_keys: Mapping[str, HostKey]
    bastion: tuple[str, str | None] | None


def fleet_state(plan: GcpPlan, settings: GcpSettings, stack: str, outputs: FleetOutputs) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, outputs)
    way, makers = plan.access.way, plan.makers
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        cloud_state.node_state(
            groups[node.name],
            node,
            outputs.host_keys[machine.id],
            cloud_state.Route(
                machine.public if way == "direct" else machine.internal,
                machine.internal,
                jumps,
                _iap_command(groups[node.name], settings, machine.name) if way == "iap" else None,
            ),
            topology=machine.host,
            disk_gb=groups[node.name].disk.size_gb,
            made_by=makers.get(node.name),
            reservation=groups[node.name].reservation,
        )
        for node, machine in zip(plan.all_nodes, outputs.machines, strict=True)
        if machine.id in outputs.host_keys
    ]
    return cloud_state.fleet_state(plan, stack, nodes, backend="gcp", grace_s=UNREACHABLE_GRACE_S)


def _jumps(plan: GcpPlan, settings: GcpSettings, outputs: FleetOutputs) -> list[dict[str, Any]]:
    if plan.bastion is None or outputs.bastion is None:
        return cloud_state.given_jumps(plan.access.jumps)
    name, address = outputs.bastion
    tunnel = None if plan.bastion.public else _iap_command(plan, settings, name)
    return [cloud_state.bastion_jump(plan, outputs.seed, address, tunnel)]


def _iap_command(plan: GcpPlan, settings: GcpSettings, instance: str) -> str:
    return iap_command(plan.project, plan.zone, settings, instance)


def iap_command(project: str, zone: str, settings: GcpSettings, instance: str) -> str:
    """A command whose standard streams are the SSH port of an instance, through IAP."""
    words = ["gcloud", "compute", "start-iap-tunnel", instance, "22", "--listen-on-stdin"]
    words += ["--verbosity=warning", f"--project={project}", f"--zone={zone}"]
    if isinstance(settings.creds, GcpServiceAccountCreds):
        variables = {"CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE": _KEY_FILE_VARIABLE}
        return with_environment(words, variables, _OVERRIDING_VARIABLES)
    return command(words)


def tunnel_environment(settings: GcpSettings) -> dict[str, str]:
    """The environment variables that `iap_command` needs on this machine."""
    creds = settings.creds
    if not isinstance(creds, GcpServiceAccountCreds) or creds.filename is None:
        return {}
    return {_KEY_FILE_VARIABLE: str(Path(creds.filename).expanduser().absolute())}
