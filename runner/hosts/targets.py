"""From `ssh_config` of a fleet to machines that can be connected to: address, user, key, way, host key.

What the file leaves open is taken from the user's own SSH configuration, then from ssh's defaults. No host
fails the others: each is a Target, or a TargetError.
"""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orch.runner.errors import HostKeyRefused, HostUnreachable, JumpUnreachable, RunnerError
from orch.runner.hosts.keys import (
    HostKey,
    KeySource,
    KnownHosts,
    given_key,
    revoked_key,
    scan,
    unknown_key,
)
from orch.runner.peers import Peer, known_as, of_jump, of_node
from orch.runner.ssh import Patience, SshTransport, jump_failed
from orch.runner.sshconfig import Hop, Said, UserConfig
from orch.spec.models.ssh import Host, SshConfig
from orch.spec.models.ssh import Jump as JumpSpec
from orch.spec.state import Jump, NodeState

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Target:
    """A machine of a fleet and the way to it. `node.index` counts from 0 in the order of the file.

    `hops` are the keys of the jump hosts on the way, outermost first. Paths of keys are as written:
    `located` makes them absolute.
    """

    node: NodeState
    key_source: KeySource
    fingerprint: str
    hops: tuple[tuple[Jump, HostKey], ...] = ()

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class TargetError:
    """A machine of a fleet that cannot be connected to, by its name, and why."""

    index: int
    name: str
    address: str
    error: RunnerError


def find_targets(
    config: SshConfig,
    folder: Path,
    pinned: Mapping[str, str],
    *,
    accept: Collection[str] = (),
    user_config: UserConfig | None = None,
) -> tuple[Target | TargetError, ...]:
    """Every machine of `config`, in its order.

    `pinned` holds the keys accepted before, as `pins` gives them. Keys that nothing tells are asked of the
    hosts, unless `known_hosts` is `strict`; those of the names in `accept` (nodes, addresses of jump hosts)
    are asked anew whatever was pinned. Relative key files are in `folder`. Raises BadSshConfig.
    """
    transport = SshTransport(connect_timeout_s=float(config.connect_timeout_s))
    try:
        finder = _Finder(config, folder, pinned, frozenset(accept), user_config or UserConfig(), transport)
        return finder.find()
    finally:
        transport.close()


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


def pins(nodes: Iterable[NodeState]) -> dict[str, str]:
    """The keys of nodes and of the jump hosts before them, as `find_targets` takes them."""
    found: dict[str, str] = {}
    for node in nodes:
        found[node.name] = node.host_key
        found.update({_pin(jump): jump.host_key for jump in node.jump if jump.host_key})
    return found


def located(node: NodeState, folder: Path) -> NodeState:
    """The same node with the paths of its keys made absolute."""
    jumps = tuple(_absolute(jump, folder) for jump in node.jump)
    return node.model_copy(update={"identity": resolved(node.identity, folder), "jump": jumps})


def resolved(identity: str | None, folder: Path) -> str | None:
    """Where a key file is: `~` expanded, relative to `folder`."""
    return None if identity is None else str(folder.absolute() / Path(identity).expanduser())


def _pin(jump: Jump) -> str:
    # No node has a space in its name.
    return f"jump {known_as(jump.address, jump.port)}"


@dataclass(frozen=True)
class _Way:
    """One machine with all settings merged, its own key and those of its jump hosts still unknown."""

    node: NodeState
    given: str | None
    known_as: str
    known_hosts: KnownHosts


@dataclass
class _Finder:
    _config: SshConfig
    _folder: Path
    _pinned: Mapping[str, str]
    _accept: frozenset[str]
    _user_config: UserConfig
    _transport: SshTransport
    _files: dict[tuple[str, ...], KnownHosts] = field(default_factory=dict)
    _jump_keys: dict[tuple[Jump, ...], HostKey | RunnerError] = field(default_factory=dict)

    def find(self) -> tuple[Target | TargetError, ...]:
        ways = self._ways()
        chains = {way.node.jump for way in ways if isinstance(way, _Way)}
        for length in range(1, max(map(len, chains), default=0) + 1):
            level = list(dict.fromkeys(chain[:length] for chain in chains if len(chain) >= length))
            self._jump_keys.update(zip(level, self._each(self._jump_key, level), strict=True))
        return tuple(self._each(self._target, ways))

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if not items:
            return []
        with ThreadPoolExecutor(min(self._config.parallel, len(items)), "orch-target") as pool:
            return list(pool.map(work, items))

    # --- settings

    def _ways(self) -> list[_Way | TargetError]:
        called = names(self._config)
        twice = {name for name, count in Counter(called).items() if count > 1}
        machines = self._config.machines()
        written = [host for host in self._config.hosts for _ in host.hostnames]
        ways: list[_Way | TargetError] = []
        for index, (name, host, own) in enumerate(zip(called, machines, written, strict=True)):
            if name in twice:
                error = RunnerError(
                    f"several hosts of the fleet are called {name}",
                    where=host.hostname,
                    hint="give each a `name` of its own",
                    code="ORCH143",
                )
                ways.append(TargetError(index, name, host.hostname, error))
                continue
            port_said = own.port is not None or "port" in self._config.model_fields_set
            ways.append(self._way(index, name, host, host.port if port_said else None))
        return ways

    def _way(self, index: int, name: str, host: Host, port: int | None) -> _Way:
        said = self._user_config.lookup(host.hostname)
        jumps: tuple[Jump, ...] = ()
        command = None
        if host.proxy_jump is not None:
            jumps = self._chain([_as_hop(hop) for hop in host.proxy_jump])
        elif said.proxy_jump:
            jumps = self._chain([(hop, None) for hop in said.proxy_jump])
        else:
            command = said.proxy_command
        node = NodeState(
            index=index,
            name=name,
            address=said.hostname or host.hostname,
            port=port or said.port or 22,
            user=host.user or said.user or getpass.getuser(),
            identity=host.identity_file or self._existing(said),
            host_key="",
            jump=jumps,
            proxy_command=command,
            internal_ip=host.internal_ip,
            blocks=host.blocks if isinstance(host.blocks, int) else 1,
            rack=host.rack,
            env={key: value for key, value in host.env.items() if value is not None},
        )
        alias = said.known_as or known_as(node.address, node.port)
        return _Way(node, host.host_key, alias, self._known(said.known_hosts))

    def _chain(
        self, hops: Sequence[tuple[Hop, str | None]], seen: frozenset[str] = frozenset()
    ) -> tuple[Jump, ...]:
        """Hops with what the user's configuration says of them, and the way to the first one before it."""
        made: list[Jump] = []
        for at, (hop, identity) in enumerate(hops):
            said = self._user_config.lookup(hop.host)
            if at == 0 and said.proxy_jump and hop.host not in seen:
                before = [(each, None) for each in said.proxy_jump]
                made += self._chain(before, seen | {hop.host})
            made.append(
                Jump(
                    address=said.hostname or hop.host,
                    port=hop.port or said.port or 22,
                    user=hop.user or said.user or getpass.getuser(),
                    identity=identity or self._existing(said),
                    proxy_command=said.proxy_command if at == 0 else None,
                )
            )
        return tuple(made)

    def _existing(self, said: Said) -> str | None:
        """The first of the user's key files for a host that is there."""
        return next((path for path in said.identities if Path(path).expanduser().is_file()), None)

    def _known(self, files: tuple[str, ...]) -> KnownHosts:
        return self._files.setdefault(files, KnownHosts(files))

    # --- keys

    def _target(self, way: _Way | TargetError) -> Target | TargetError:
        if isinstance(way, TargetError):
            return way
        node = way.node
        try:
            hops = self._hops(node.jump)
            node = node.model_copy(update={"jump": tuple(jump for jump, _ in hops)})
            pin = self._pinned.get(node.name)
            fresh = node.name in self._accept
            if way.given is not None:
                key = given_key(of_node(node), way.given)
            elif pin and not fresh:
                key = HostKey(pin, "pinned")
            else:
                peer = of_node(located(node, self._folder))
                key = self._found(peer, way.known_as, way.known_hosts, fresh=fresh)
        except RunnerError as error:
            return TargetError(node.index, node.name, node.address, error)
        return Target(
            node.model_copy(update={"host_key": key.public}), key.source, key.fingerprint, tuple(hops)
        )

    def _hops(self, chain: tuple[Jump, ...]) -> list[tuple[Jump, HostKey]]:
        """A chain with its keys in it. Raises what kept one of them from being known."""
        hops: list[tuple[Jump, HostKey]] = []
        for length, jump in enumerate(chain, 1):
            key = self._jump_keys[chain[:length]]
            if isinstance(key, RunnerError):
                raise key
            hops.append((jump.model_copy(update={"host_key": key.public}), key))
        return hops

    def _jump_key(self, chain: tuple[Jump, ...]) -> HostKey | RunnerError:
        """The key of the last hop of a chain; the hops before it are known already."""
        last = chain[-1]
        pin = self._pinned.get(_pin(last))
        fresh = last.address in self._accept
        if pin and not fresh:
            return HostKey(pin, "pinned")
        said = self._user_config.lookup(last.address)
        try:
            way = [*(jump for jump, _ in self._hops(chain[:-1])), last]
            peer = of_jump(tuple(_absolute(jump, self._folder) for jump in way))
            alias = said.known_as or known_as(last.address, last.port)
            return self._found(peer, alias, self._known(said.known_hosts), fresh=fresh)
        except (HostKeyRefused, JumpUnreachable) as error:
            return error
        except HostUnreachable as error:
            return jump_failed(of_jump(chain), error)

    def _found(self, peer: Peer, alias: str, files: KnownHosts, *, fresh: bool) -> HostKey:
        """A key that is neither given nor pinned: the user's, unless it must be `fresh`, or the host's."""
        known = None if fresh else files.lookup(alias)
        if known is not None:
            return known
        strict = self._config.known_hosts == "strict"
        connect_s = float(self._config.connect_timeout_s)
        try:
            found = scan(self._transport, peer, Patience(connect_s, connect_s))
        except HostUnreachable as error:
            if strict:
                raise unknown_key(peer, error) from error
            raise
        if files.revoked(found.public):
            raise revoked_key(peer, found)
        if strict:
            raise unknown_key(peer, found)
        return found


def _absolute(jump: Jump, folder: Path) -> Jump:
    return jump.model_copy(update={"identity": resolved(jump.identity, folder)})


def _as_hop(jump: JumpSpec) -> tuple[Hop, str | None]:
    port = jump.port if "port" in jump.model_fields_set else None
    return Hop(jump.hostname, jump.user, port), jump.identity_file
