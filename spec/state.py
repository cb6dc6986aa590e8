"""FleetState: the one contract between provisioning and running.

Written by `stacks` from a stack's outputs, read by `runner`. An AWS instance, an on-prem server and a local
container look the same here. As it is recorded it holds no secret: `identity` is the path of a private key
file, never its text, and `env` is a secret output beside it, filled in for runs alone.
"""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

SCHEMA = 4
"""4: nodes have `machine`.
3: nodes have `arch` and `disk_mib`.
2: variables are no part of the recorded fleet; who knows only 1 would start jobs without them."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Jump(_Frozen):
    """One hop on the way to a node, outermost first. `proxy_command` leads to it where TCP does not.

    `ssh_alias`: as in NodeState.
    """

    address: str
    port: int = 22
    user: str
    identity: str | None = None
    host_key: str | None = None
    proxy_command: str | None = None
    ssh_alias: str | None = None


class Gpus(_Frozen):
    """Accelerators of one node. `memory_mib` is per device.

    Without `toolkit` the node's Docker has no runtime for them: a job is given devices and driver as files.
    """

    count: int = 0
    vendor: str | None = None
    name: str | None = None
    memory_mib: int | None = None
    toolkit: bool = True


class NodeState(_Frozen):
    """One node as provisioning left it.

    `host_key` is the public host key as in known_hosts: "ssh-ed25519 AAAA…". `env` reaches every job on the
    node. `disk_mib`: the size of what jobs write to, a cloud's root disk, or where a host's Docker keeps its
    data. `rack` orders ranks before `topology` does. `made_by`: the resource of the stack that made it, where
    it is none of its own. `machine`: the cloud's id of the machine that showed `host_key` through the cloud,
    where it makes its own. `ssh_alias`: the name by which the ~/.ssh/config of whoever connects may know a
    ProxyCommand that leads there; the command itself is never recorded.
    """

    index: int
    name: str
    address: str
    port: int = 22
    user: str
    identity: str | None = None
    host_key: str
    jump: tuple[Jump, ...] = ()
    proxy_command: str | None = None
    ssh_alias: str | None = None
    internal_ip: str | None = None
    cpus: float | None = None
    memory_mib: int | None = None
    arch: Literal["x86", "arm"] | None = None
    disk_mib: int | None = None
    gpus: Gpus = Gpus()
    blocks: int = 1
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    rack: str | None = None
    topology: tuple[str, ...] = ()
    env: dict[str, str] = {}
    price_hourly: float | None = None
    made_by: str | None = None
    machine: str | None = None


class FleetState(_Frozen):
    """A provisioned fleet.

    `unreachable_grace_s`: how long a silent node may stay silent before its run is given up. `beside_hourly`:
    what it costs without its nodes, in US dollars an hour.
    """

    schema_version: int = SCHEMA
    name: str
    stack: str
    backend: str
    placement: Literal["any", "cluster"] = "any"
    interconnect: str = "ethernet"
    simulated: bool = False
    image: str | None = None
    env: dict[str, str] = {}
    unreachable_grace_s: float = 120.0
    beside_hourly: float | None = None
    nodes: tuple[NodeState, ...] = ()

    @field_validator("nodes")
    @classmethod
    def _no_commands_of_others(
        cls, nodes: tuple[NodeState, ...], found: ValidationInfo
    ) -> tuple[NodeState, ...]:
        """Existing hosts are recorded without commands: one that a former version recorded is not run.

        It came from the ~/.ssh/config of the first user, and everybody who reads the state would run it.
        """
        return tuple(map(without_commands, nodes)) if found.data.get("backend") == "ssh" else nodes


def without_commands(node: NodeState) -> NodeState:
    """The same node with the names under which a command was found in place of the commands."""
    jump = tuple(_without_command(hop, hop.address) for hop in node.jump)
    return _without_command(node.model_copy(update={"jump": jump}), node.name)


Hop = TypeVar("Hop", NodeState, Jump)


def _without_command(hop: Hop, name: str) -> Hop:
    if hop.proxy_command is None:
        return hop
    return hop.model_copy(update={"proxy_command": None, "ssh_alias": hop.ssh_alias or name})
