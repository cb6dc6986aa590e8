"""One log-in to one SSH server over a stream that is open already: host key, user key, keep-alive. And a node
in the words of the `ssh` command: a configuration with its way, key and pinned host keys.

Fabric's `Connection` holds it, with an empty configuration: the fleet says everything, ~/.ssh/config and
fabric.yml must not change it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import paramiko
from fabric import Config, Connection

from orch.runner.errors import LoginRefused, RunnerError
from orch.runner.private import private_folder, write_private
from orch.runner.ssh.connect import proxy_words
from orch.runner.ssh.endpoint import SshEndpoint, changed_key, of_jump, of_node, read_host_key
from orch.runner.ssh.host_keys import RevokedKeys
from orch.runner.ssh.identities import Identity
from orch.runner.ssh.protocol import Protocol, Stream, handshake_failed
from orch.runner.ssh.safe_text import one_line, quoted, refuse_host, word
from orch.runner.ssh.user_config import UserConfig
from orch.spec.errors import ExitCode
from orch.spec.state import NodeState

KEEPALIVE_S = 15

# One for all connections, which only read it: making one takes longer than all else of a `Connection`.
_EMPTY = Config(ssh_config=paramiko.SSHConfig(), lazy=True)


class _Connection(Connection):
    """Fabric's connection without a trap: an attribute that its class lacks is written into the
    configuration, which is then merged anew. That took half the time of making one.
    """

    inline_ssh_env: bool = False


def log_in(peer: SshEndpoint, stream: Stream, identities: Sequence[Identity], timeout_s: float) -> Connection:
    """One attempt, on a stream that is closed again if it fails.

    Raises HostKeyRefused, LoginRefused or HostUnreachable.
    """
    connection = _Connection(
        peer.address,
        user=peer.user,
        port=peer.port,
        config=_EMPTY,
        connect_kwargs={
            "sock": stream,
            "timeout": timeout_s,
            "banner_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "transport_factory": Protocol,
            "auth_strategy": _PublicKeys(peer, identities, time.monotonic() + timeout_s),
        },
    )
    client = connection.client
    if client is None:
        raise TypeError("a Fabric connection without a client")
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    started = time.monotonic()
    pinned = None
    try:
        if peer.host_key:
            pinned = read_host_key(peer)
            client.get_host_keys().add(peer.known_as, pinned.get_name(), pinned)
        else:
            client.load_system_host_keys()
        connection.open()
        transport = client.get_transport()
        if transport is None:
            raise EOFError("the connection closed after the login")
        transport.set_keepalive(KEEPALIVE_S)
    except BaseException as error:
        transport = client.get_transport()
        client.close()
        if transport is None:
            stream.close()
        translated = _translate(peer, error, pinned)
        if translated is error and isinstance(error, (paramiko.SSHException, OSError, EOFError)):
            seconds = time.monotonic() - started
            raise handshake_failed(
                peer, error, transport=transport, stream=stream, slow=seconds >= timeout_s * 0.9
            ) from error
        if translated is error:
            raise
        raise translated from error
    return connection


class _PublicKeys:
    """Tries keys one after another; what Paramiko calls an authentication strategy."""

    def __init__(self, peer: SshEndpoint, identities: Sequence[Identity], end: float) -> None:
        self._peer = peer
        self._identities = identities
        self._end = end

    def authenticate(self, transport: paramiko.Transport) -> None:
        peer = self._peer
        tried: list[str] = []
        for identity in self._identities:
            tried.append(identity.name)
            transport.auth_timeout = max(0.5, self._end - time.monotonic())
            try:
                other_methods = transport.auth_publickey(peer.user, identity.key)
            except paramiko.BadAuthenticationType as error:
                raise self._login_refused(
                    f"it takes no keys, only {', '.join(error.allowed_types)}",
                    "`PubkeyAuthentication yes` in its /etc/ssh/sshd_config, then reload sshd",
                ) from error
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise
                if not transport.is_active():  # as sshd does after MaxAuthTries
                    break
                continue
            if other_methods:
                raise self._login_refused(
                    f"{identity.name} alone is not enough, it wants {', '.join(other_methods)} too",
                    "give orch a user that logs in with a key alone",
                )
            return
        if not tried:
            raise self._login_refused(
                "there is no key to try: none in the SSH agent, and no unencrypted ~/.ssh/id_* file",
                "set `identity_file`, or `ssh-add` a key",
            )
        raise self._login_refused(
            f"tried {', '.join(tried)}",
            f"is `user` right, and is the public half of {'it' if len(tried) == 1 else 'one of them'} in "
            f"~{peer.user}/.ssh/authorized_keys there?",
        )

    def _login_refused(self, detail: str, hint: str) -> LoginRefused:
        peer = self._peer
        return LoginRefused(
            f"{peer.label} refuses the login of {peer.user}", where=peer.where, detail=detail, hint=hint
        )


def _translate(peer: SshEndpoint, error: BaseException, pinned: paramiko.PKey | None) -> BaseException:
    """What a refusal means; anything else as it is."""
    if isinstance(error, paramiko.BadHostKeyException):
        return changed_key(peer, error.expected_key, error.key)
    if isinstance(error, paramiko.AuthenticationException) and "timeout" not in str(error).lower():
        return LoginRefused(
            f"{peer.label} refuses the login of {peer.user}", where=peer.where, detail=str(error)
        )
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
        return changed_key(peer, pinned, None)
    return error


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
