"""A node in the words of the `ssh` command: a configuration with its way, key and pinned host keys."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orch.runner.peers import Peer, of_jump, of_node
from orch.runner.ssh import identity_agent
from orch.runner.sshconfig import UserConfig
from orch.spec.state import NodeState


def write_config(node: NodeState, folder: Path, user_config: UserConfig) -> Path:
    """Write `config` and `known_hosts` for a node into `folder`, for `ssh -F`; gives the former."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = folder / "known_hosts"
    hops = [of_jump(node.jump[: length + 1]) for length in range(len(node.jump))]
    peers = [*((f"hop-{at + 1}", hop) for at, hop in enumerate(hops)), (node.name, of_node(node))]
    _write(known, "".join(f"{name} {peer.host_key}\n" for name, peer in peers if peer.host_key))
    blocks: list[str] = []
    before = None
    for name, peer in peers:
        blocks.append(_block(name, peer, before, known, identity_agent(user_config, peer)))
        before = name
    config = folder / "config"
    _write(config, "\n".join(blocks))
    return config


def ssh_words(node: NodeState, config: Path, more: Sequence[str]) -> list[str]:
    """The `ssh` command line for a node, with the user's own words after the node's name."""
    return ["ssh", "-F", str(config), node.name, *more]


def _block(name: str, peer: Peer, before: str | None, known: Path, agent: str | None) -> str:
    lines = {"HostName": peer.address, "Port": peer.port, "User": peer.user}
    if peer.identity:
        lines |= {"IdentityFile": _quoted(peer.identity), "IdentitiesOnly": "yes"}
    if agent:
        lines["IdentityAgent"] = _quoted(agent)
    if peer.host_key:
        # The alias keeps hops and nodes of equal addresses apart.
        lines |= {"HostKeyAlias": name, "UserKnownHostsFile": _quoted(str(known))}
        lines |= {"GlobalKnownHostsFile": "none", "StrictHostKeyChecking": "yes", "CheckHostIP": "no"}
    if before is not None:
        lines["ProxyJump"] = before
    elif peer.proxy_command is not None:
        lines["ProxyCommand"] = peer.proxy_command
    lines["ServerAliveInterval"] = 15
    return "".join([f"Host {name}\n", *(f"  {key} {value}\n" for key, value in lines.items())])


def _quoted(path: str) -> str:
    return f'"{path}"'


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another `orch ssh` may be reading it."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(text)
    staged.chmod(0o600)
    staged.rename(path)
