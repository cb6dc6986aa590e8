"""From `ssh_config` of a fleet to machines that can be connected to: address, user, key, way, host key.

What the file leaves open is taken from the user's own SSH configuration, then from ssh's defaults. No host
fails the others: each is a Target, or a TargetError.
"""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from orch.runner.errors import HostKeyRefused, HostUnreachable, JumpUnreachable, RunnerError
from orch.runner.hosts.survey import Target, TargetError
from orch.runner.ssh.endpoint import SshEndpoint, known_as, of_jump, of_node
from orch.runner.ssh.host_keys import HostKey, KeySource, KnownHosts, revoked_key
from orch.runner.ssh.naming import absolute, located, names, pin_of
from orch.runner.ssh.pool import Patience, SshConnector, jump_failed
from orch.runner.ssh.public_keys import given_key, scan, unaccepted_key, unknown_key
from orch.runner.ssh.user_config import Hop, HostOptions, UserConfig, known_hosts_files
from orch.spec.models.ssh import Host, SshConfig
from orch.spec.models.ssh import Jump as JumpSpec
from orch.spec.state import Jump, NodeState, SshAccess

Unseen = Literal["none", "named", "all"]
"""Which keys are taken that nobody has seen: none, those of hosts named to be asked anew, all new ones.

A key that differs from a known one is never new.
"""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class SshTarget(Target):
    """A machine that is reached over SSH, and how its key came to be known.

    `hops` are the keys of the jump hosts on the way, outermost first. Paths of keys are as written:
    `located` makes them absolute.
    """

    key_source: KeySource
    fingerprint: str
    hops: tuple[tuple[Jump, HostKey], ...] = ()


def find_targets(
    config: SshConfig,
    folder: Path,
    pinned: Mapping[str, str],
    *,
    accepted: Mapping[str, str] | None = None,
    anew: Collection[str] = (),
    unseen: Unseen = "none",
    user_config: UserConfig | None = None,
) -> tuple[SshTarget | TargetError, ...]:
    """Every machine of `config`, in its order. Logs in to jump hosts only, once their keys are accepted.

    `pinned` holds the keys accepted before, `accepted` those that a person has seen and accepted now, both as
    `pins` gives them. Those of the names in `anew` (nodes; jump hosts by name or address) are asked of the
    hosts whatever was pinned. A key that nothing tells is asked of its host; `unseen` says whether it is
    taken, and a host whose key is not is a TargetError with HostKeyUnaccepted. Relative key files are in
    `folder`. Raises BadSshConfig.
    """
    connector = SshConnector(connect_timeout_s=float(config.connect_timeout_s))
    try:
        finder = _Finder(
            config,
            folder,
            pinned,
            accepted or {},
            frozenset(anew),
            unseen,
            user_config or UserConfig(),
            connector,
        )
        return finder.find()
    finally:
        connector.close()


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
    _accepted: Mapping[str, str]
    _anew: frozenset[str]
    _unseen: Unseen
    _user_config: UserConfig
    _connector: SshConnector
    _files: dict[tuple[str, ...], KnownHosts] = field(default_factory=dict)
    # Jump hosts by address: what the file, or the user's configuration, calls them.
    _called: dict[str, list[str]] = field(default_factory=dict)
    _jump_keys: dict[tuple[Jump, ...], HostKey | RunnerError] = field(default_factory=dict)

    def find(self) -> tuple[SshTarget | TargetError, ...]:
        ways = self._ways()
        chains = {way.node.ssh.jump for way in ways if isinstance(way, _Way)}
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
        access = SshAccess(
            address=said.hostname or host.hostname,
            port=port or said.port or 22,
            user=host.user or said.user or getpass.getuser(),
            identity=host.identity_file or self._existing(said),
            host_key="",
            jump=jumps,
            proxy_command=command,
            ssh_alias=host.hostname if command else None,
        )
        node = NodeState(
            index=index,
            name=name,
            access=access,
            internal_ip=host.internal_ip,
            blocks=host.blocks if isinstance(host.blocks, int) else 1,
            rack=host.rack,
            env={key: value for key, value in host.env.items() if value is not None},
        )
        alias = said.known_as or known_as(access.address, access.port)
        known = self._known(said, host.hostname, access.address, access.port, access.user)
        return _Way(node, host.host_key, alias, known)

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
            address = said.hostname or hop.host
            self._called.setdefault(address, []).append(hop.host)
            made.append(
                Jump(
                    address=address,
                    port=hop.port or said.port or 22,
                    user=hop.user or said.user or getpass.getuser(),
                    identity=identity or self._existing(said),
                    proxy_command=said.proxy_command if at == 0 else None,
                    ssh_alias=hop.host if at == 0 and said.proxy_command else None,
                )
            )
        return tuple(made)

    def _existing(self, said: HostOptions) -> str | None:
        """The first of the user's key files for a host that is there."""
        return next((path for path in said.identities if Path(path).expanduser().is_file()), None)

    def _known(self, said: HostOptions, name: str, address: str, port: int, user: str) -> KnownHosts:
        files = known_hosts_files(said, name=name, address=address, port=port, user=user)
        return self._files.setdefault(files, KnownHosts(files))

    # --- keys

    def _target(self, way: _Way | TargetError) -> SshTarget | TargetError:
        if isinstance(way, TargetError):
            return way
        node = way.node
        try:
            hops = self._hops(node.ssh.jump)
            node = node.reached(jump=tuple(jump for jump, _ in hops))
            anew = node.name in self._anew
            key = self._decided(node.name, anew=anew)
            if way.given is not None:
                key = given_key(of_node(node), way.given)
            elif key is None:
                peer = of_node(located(node, self._folder))
                key = self._found(peer, node.name, way.known_as, way.known_hosts, anew=anew)
            if way.known_hosts.revoked(key.public):
                raise revoked_key(of_node(node), key)
        except RunnerError as error:
            return TargetError(node.index, node.name, node.ssh.address, error)
        return SshTarget(
            node.reached(host_key=key.public),
            key.source,
            key.fingerprint,
            tuple(hops),
            unseen_key=key.fingerprint if key.source == "scanned" else None,
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
        called = self._called[last.address]
        anew = not self._anew.isdisjoint({last.address, *called})
        decided = self._decided(pin_of(last), anew=anew)
        said = self._user_config.lookup(called[0])
        known = self._known(said, called[0], last.address, last.port, last.user)
        if decided is not None:
            banned = known.revoked(decided.public)
            return revoked_key(of_jump(chain), decided) if banned else decided
        try:
            way = [*(jump for jump, _ in self._hops(chain[:-1])), last]
            peer = of_jump(tuple(absolute(jump, self._folder) for jump in way))
            alias = said.known_as or known_as(last.address, last.port)
            return self._found(peer, pin_of(last), alias, known, anew=anew)
        except (HostKeyRefused, JumpUnreachable) as error:
            return error
        except HostUnreachable as error:
            return jump_failed(of_jump(chain), error)

    def _decided(self, pin: str, *, anew: bool) -> HostKey | None:
        """The key that was accepted, now or before."""
        if pin in self._accepted:
            return HostKey(self._accepted[pin], "accepted")
        pinned = self._pinned.get(pin)
        return HostKey(pinned, "pinned") if pinned and not anew else None

    def _found(self, peer: SshEndpoint, pin: str, alias: str, files: KnownHosts, *, anew: bool) -> HostKey:
        """A key that is neither given nor decided: the user's, unless it must be asked `anew`, or the host's.

        Raises HostKeyUnaccepted for one of the host's that is not to be taken unseen.
        """
        known = None if anew else files.lookup(alias)
        if known is not None:
            return known
        strict = self._config.known_hosts == "strict"
        connect_s = float(self._config.connect_timeout_s)
        try:
            found = scan(self._connector, peer, Patience(connect_s, connect_s))
        except HostUnreachable as error:
            if strict:
                raise unknown_key(peer, error) from error
            raise
        if files.revoked(found.public):
            raise revoked_key(peer, found)
        if strict:
            raise unknown_key(peer, found)
        if self._unseen == "all" or (self._unseen == "named" and anew):
            return found
        raise unaccepted_key(peer, found, pin)


def _as_hop(jump: JumpSpec) -> tuple[Hop, str | None]:
    port = jump.port if "port" in jump.model_fields_set else None
    return Hop(jump.hostname, jump.user, port), jump.identity_file
