"""What machines and jump hosts of an `ssh_config` are called, as what their keys are pinned."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orch.runner.ssh.endpoint import known_as
from orch.runner.ssh.user_config import UserConfig
from orch.spec.access import Jump, resolved
from orch.spec.models.ssh import SshConfig
from orch.spec.state import NodeState


def names(config: SshConfig) -> tuple[str, ...]:
    """What each machine of `config` is called: `name`, else its host name as written; with the port where one
    host name is listed with several.
    """
    machines = config.machines()
    ports: dict[str, set[int | None]] = {}
    for machine in machines:
        ports.setdefault(machine.hostname, set()).add(machine.port)
    return tuple(
        machine.name
        or machine.hostname.replace(":", "-")
        + (f"-{machine.port}" if len(ports[machine.hostname]) > 1 else "")
        for machine in machines
    )


def hop_names(config: SshConfig, user_config: UserConfig | None = None) -> tuple[str, ...]:
    """What the jump hosts on the ways to the machines of `config` are called: names as written, addresses."""
    configuration = user_config or UserConfig()
    hop_names: dict[str, None] = {}
    for machine in config.machines():
        options = configuration.lookup(machine.hostname)
        hops = [hop.hostname for hop in machine.proxy_jump or ()] or [hop.host for hop in options.proxy_jump]
        for hop in hops:
            hop_names.setdefault(hop)
            hop_names.setdefault(configuration.lookup(hop).hostname or hop)
    return tuple(hop_names)


def pins(nodes: Iterable[NodeState]) -> dict[str, str]:
    """The keys of nodes and of the jump hosts before them, as `find_targets` takes them."""
    keys: dict[str, str] = {}
    for node in nodes:
        keys[node.name] = node.ssh.host_key
        keys.update({pin_of(jump): jump.host_key for jump in node.ssh.jump if jump.host_key})
    return keys


def pin_of(jump: Jump) -> str:
    """What the key of a jump host is pinned as: no node has a space in its name."""
    return f"jump {known_as(jump.address, jump.port)}"


def located(node: NodeState, folder: Path) -> NodeState:
    """The same node with the paths of its keys made absolute."""
    return node.model_copy(update={"access": node.access.located(folder)})


def absolute(jump: Jump, folder: Path) -> Jump:
    """The same jump host with the path of its key made absolute."""
    return jump.model_copy(update={"identity": resolved(jump.identity, folder)})
