"""A node in the words of OpenSSH: the `ssh` command with a configuration that has the way to it, its key and
its pinned host keys; and the tokens of a proxy command.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.private import private_folder, write_private
from orch.runner.ssh.endpoint import SshEndpoint, of_jump, of_node, read_host_key
from orch.runner.ssh.host_keys import RevokedKeys
from orch.runner.ssh.safe_text import one_line, quoted, refuse_host, refuse_user, word
from orch.runner.ssh.user_config import UserConfig
from orch.spec.errors import ExitCode
from orch.spec.state import NodeState

_TOKEN = re.compile(r"%([hnpr%])")


def proxy_words(template: str, address: str, port: int, user: str) -> str:
    """A proxy command with its tokens filled in. Raises UnsafeName."""
    tokens = set(_TOKEN.findall(template))
    if tokens & {"h", "n"}:
        refuse_host(address)
    if "r" in tokens:
        refuse_user(user)
    values = {"h": address, "n": address, "p": str(port), "r": user, "%": "%"}
    return _TOKEN.sub(lambda match: values[match.group(1)], template)


def write_config(node: NodeState, folder: Path, user_config: UserConfig) -> Path:
    """Write `config` and `known_hosts` for a node into `folder`, for `ssh -F`; gives the former.

    Raises UnsafeName for what would be more than a name or a path there, HostKeyRefused for a pinned key that
    is none, or that the user's own known hosts ban: `ssh` reads only the file that is written here.
    """
    refuse_host(node.name)
    hops = [of_jump(node.ssh.jump[: length + 1]) for length in range(len(node.ssh.jump))]
    peers = [*((f"hop-{at + 1}", hop) for at, hop in enumerate(hops)), (node.name, of_node(node))]
    revoked = RevokedKeys(user_config)
    for _, peer in peers:
        revoked.refuse(peer)
    known_hosts = folder / "known_hosts"
    keys = "".join(f"{name} {_key_line(peer)}\n" for name, peer in peers if peer.host_key)
    blocks: list[str] = []
    previous = None
    for name, peer in peers:
        blocks.append(_block(name, peer, previous, known_hosts, user_config))
        previous = name
    private_folder(folder)
    write_private(known_hosts, keys)
    config = folder / "config"
    write_private(config, "\n".join(blocks))
    return config


class NoSsh(RunnerError):
    """This machine has no `ssh` command."""

    exit_code = ExitCode.HOSTS


def ssh_words(node: NodeState, folder: Path, user_config: UserConfig, arguments: Sequence[str]) -> list[str]:
    """The `ssh` command line for a node, its configuration in `folder`; `arguments` after the node's name.

    Raises NoSsh, and what `write_config` raises.
    """
    program = shutil.which("ssh")
    if program is None:
        raise NoSsh("there is no ssh command on this machine", hint="install OpenSSH's client")
    return [program, "-F", str(write_config(node, folder, user_config)), node.name, *arguments]


def _block(
    name: str, peer: SshEndpoint, previous: str | None, known_hosts: Path, user_config: UserConfig
) -> str:
    # `ssh` expands `%` in some of these.
    refuse_host(peer.address)
    lines = {
        "HostName": peer.address.replace("%", "%%"),
        "Port": peer.port,
        "User": word(peer.user, f"the user of {peer.label}"),
    }
    if peer.identity:
        key = quoted(peer.identity, f"the key file of {peer.label}")
        lines |= {"IdentityFile": key, "IdentitiesOnly": "yes"}
    if agent := user_config.agent(peer):
        lines["IdentityAgent"] = f'"{one_line(agent, "the socket of your SSH agent")}"'
    if peer.host_key:
        # The alias keeps hops and nodes of equal addresses apart.
        lines |= {
            "HostKeyAlias": name,
            "UserKnownHostsFile": quoted(str(known_hosts), "the folder of this project"),
        }
        lines |= {"GlobalKnownHostsFile": "none", "StrictHostKeyChecking": "yes", "CheckHostIP": "no"}
    if previous is not None:
        lines["ProxyJump"] = previous
    elif (command := user_config.proxy_command(peer)) is not None:
        # A shell of ssh's fills it in, without a look at what comes from here.
        proxy_words(command, peer.address, peer.port, peer.user)
        lines["ProxyCommand"] = one_line(command, f"the proxy command of {peer.label}")
    lines["ServerAliveInterval"] = 15
    return "".join([f"Host {name}\n", *(f"  {key} {value}\n" for key, value in lines.items())])


def _key_line(peer: SshEndpoint) -> str:
    """The pinned key and nothing beside it. Raises HostKeyRefused."""
    key = read_host_key(peer)
    return f"{key.get_name()} {key.get_base64()}"
