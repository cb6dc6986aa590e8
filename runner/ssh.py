"""The transport over SSH: Fabric's `Connection` for hosts, gateways and log-ins, its channels for commands.

A host's key is known before the first connect and put into the client's table; anything else is refused.
Fabric's own `run` is not used: it decodes and mirrors streams for people, while the runner streams images of
gigabytes to stdin and follows logs for hours.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from fabric import Config, Connection
from paramiko.hostkeys import HostKeyEntry

from orch.runner.commands import Command
from orch.runner.errors import HostKeyRefused, HostUnreachable, LoginRefused
from orch.runner.exchange import Exchange, unreachable
from orch.runner.transport import Completed
from orch.spec.state import Jump, NodeState

# A host behind a jump host is opened while at most this many others are: sshd drops random ones above
# MaxStartups (10).
HANDSHAKES_PER_JUMP = 8
KEEPALIVE_S = 15

# Without a handler of its own the library's log of failed handshakes goes to stderr, traceback included.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Wire(paramiko.Transport):
    """AES-GCM first: one pass over the data, about twice as fast as CTR with a separate MAC."""

    _preferred_ciphers = (
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
    )


@dataclass
class _Slot:
    """The one connection of a node, made by whoever comes first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: Connection | None = None


class SshTransport:
    """A pool of connections, one per node, shared by all commands for it."""

    def __init__(self, *, connect_timeout_s: float = 10.0, deadline_s: float = 30.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._deadline_s = deadline_s
        self._guard = threading.Lock()
        self._slots: dict[tuple[str, str, int, str], _Slot] = {}
        self._jumps: dict[tuple[Jump, ...], _Slot] = {}
        self._handshakes: dict[tuple[Jump, ...], threading.BoundedSemaphore] = {}
        self._closed = False

    def run(
        self,
        node: NodeState,
        command: Command,
        *,
        deadline_s: float | None = None,
        on_line: Callable[[str], None] | None = None,
        until: threading.Event | None = None,
    ) -> Completed:
        """See `Transport.run`."""
        started = time.monotonic()
        channel = self._session(node, started + (deadline_s or self._deadline_s))
        try:
            return Exchange(node, command, channel, on_line=on_line, until=until, started=started).run()
        finally:
            channel.close()

    def close(self) -> None:
        self._closed = True
        with self._guard:
            slots = [*self._slots.values(), *self._jumps.values()]
            self._slots.clear()
            self._jumps.clear()
        for slot in slots:
            if slot.connection is not None:
                slot.connection.close()

    def drop(self, node: NodeState) -> None:
        """Forget the connection of a node that stopped answering."""
        slot = self._slot(node)
        connection, slot.connection = slot.connection, None
        if connection is not None:
            connection.close()

    def _slot(self, node: NodeState) -> _Slot:
        with self._guard:
            return self._slots.setdefault((node.name, node.address, node.port, node.host_key), _Slot())

    def _session(self, node: NodeState, deadline: float) -> paramiko.Channel:
        """An open channel on the node's connection, which is made or remade as needed until `deadline`."""
        slot = self._slot(node)
        pause = 0.2
        while True:
            try:
                with slot.lock:
                    if slot.connection is None or not slot.connection.is_connected:
                        slot.connection = self._connect(node, deadline)
                    wire = slot.connection.transport
                if wire is None:
                    raise EOFError("the connection closed")
                return wire.open_session(timeout=max(0.1, deadline - time.monotonic()))
            except (HostKeyRefused, LoginRefused):
                raise
            except (HostUnreachable, paramiko.SSHException, EOFError, OSError) as error:
                self.drop(node)
                pause = min(pause * 2, 5.0)
                wait = pause * random.uniform(0.5, 1.0)
                if self._closed or time.monotonic() + wait >= deadline:
                    raise unreachable(node, error) from error
                time.sleep(wait)

    def _connect(self, node: NodeState, deadline: float) -> Connection:
        timeout = min(self._connect_timeout_s, max(0.5, deadline - time.monotonic()))
        if not node.jump:
            return _open(_host(node), timeout, node.proxy_command)
        gateway = self._gateway(node.jump, deadline)
        with self._guard:
            turn = self._handshakes.setdefault(node.jump, threading.BoundedSemaphore(HANDSHAKES_PER_JUMP))
        with turn:
            return _open(_host(node), timeout, gateway)

    def _gateway(self, chain: tuple[Jump, ...], deadline: float) -> Connection:
        """The shared connection to the last jump host of a chain, through those before it."""
        with self._guard:
            slot = self._jumps.setdefault(chain, _Slot())
        with slot.lock:
            if slot.connection is None or not slot.connection.is_connected:
                before = self._gateway(chain[:-1], deadline) if len(chain) > 1 else None
                timeout = min(self._connect_timeout_s, max(0.5, deadline - time.monotonic()))
                slot.connection = _open(_jump_host(chain[len(chain) - 1]), timeout, before)
            return slot.connection


@dataclass(frozen=True)
class _Host:
    """What a log-in needs, for nodes and jump hosts alike."""

    label: str
    address: str
    port: int
    user: str
    identity: str | None
    host_key: str | None

    @property
    def known_as(self) -> str:
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


def _host(node: NodeState) -> _Host:
    return _Host(node.name, node.address, node.port, node.user, node.identity, node.host_key)


def _jump_host(jump: Jump) -> _Host:
    return _Host(
        f"jump host {jump.address}", jump.address, jump.port, jump.user, jump.identity, jump.host_key
    )


def _open(host: _Host, timeout_s: float, gateway: Connection | str | None) -> Connection:
    """One attempt to log in. Raises HostKeyRefused, LoginRefused or HostUnreachable."""
    identity = str(Path(host.identity).expanduser()) if host.identity else None
    if identity and not Path(identity).is_file():
        raise LoginRefused(
            f"the private key for {host.label} is not here",
            where=identity,
            hint="point `identity_file` at the key, or provision the fleet again from this machine",
        )
    connection = Connection(
        host.address,
        user=host.user,
        port=host.port,
        gateway=gateway,
        # An empty configuration: the fleet says everything, ~/.ssh/config and fabric.yml must not change it.
        config=Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        connect_timeout=timeout_s,
        connect_kwargs={
            "key_filename": identity,
            "allow_agent": identity is None,
            "look_for_keys": identity is None,
            "banner_timeout": timeout_s,
            "auth_timeout": timeout_s,
            "channel_timeout": timeout_s,
            "transport_factory": _Wire,
        },
    )
    client = connection.client
    if client is None:
        raise TypeError("a Fabric connection without a client")
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    entry = None
    if host.host_key:
        entry = HostKeyEntry.from_line(f"{host.known_as} {host.host_key}")
        if entry is None or entry.key is None:
            raise HostKeyRefused(f"the pinned host key of {host.label} is not a key", where=_where(host))
        client.get_host_keys().add(host.known_as, entry.key.get_name(), entry.key)
    else:
        client.load_system_host_keys()
    try:
        connection.open()
    except paramiko.BadHostKeyException as error:
        raise _changed_key(host, error.expected_key, error.key) from error
    except paramiko.AuthenticationException as error:
        raise LoginRefused(
            f"{host.label} refuses the login of {host.user}",
            where=_where(host),
            detail=str(error),
            hint=f"is the public half of {identity} in its authorized_keys?" if identity else None,
        ) from error
    except paramiko.SSHException as error:
        if "not found in known_hosts" in str(error):
            raise _changed_key(host, entry.key if entry else None, None) from error
        raise HostUnreachable(str(error), where=_where(host)) from error
    except (OSError, EOFError) as error:
        raise HostUnreachable(str(error) or type(error).__name__, where=_where(host)) from error
    wire = client.get_transport()
    if wire is None:
        raise HostUnreachable("the connection closed after the login", where=_where(host))
    wire.set_keepalive(KEEPALIVE_S)
    return connection


def _where(host: _Host) -> str:
    return f"{host.user}@{host.address}:{host.port}"


def _changed_key(
    host: _Host, expected: paramiko.PKey | None, offered: paramiko.PKey | None
) -> HostKeyRefused:
    if expected is None:
        return HostKeyRefused(
            f"no host key is known for {host.label}",
            where=_where(host),
            hint="pin it with `host_key`, or connect once with ssh and accept it",
        )
    shown = f"{offered.get_name()} {offered.fingerprint}" if offered else "a key of another type"
    return HostKeyRefused(
        f"the host key of {host.label} is not the pinned one",
        where=_where(host),
        detail=f"expected {expected.get_name()} {expected.fingerprint}, offered {shown}",
        hint="another machine may answer at this address; if the change is meant, `orch up` pins the new key",
    )
