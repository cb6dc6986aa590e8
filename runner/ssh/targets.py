"""From `ssh_config` of a fleet to machines that can be connected to: address, user, key, route, host key.

What the file leaves open is taken from the user's own SSH configuration, then from ssh's defaults. A host
that fails does not affect the others: each is a Target, or a TargetError.
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
from orch.runner.node_api.target import Target, TargetError
from orch.runner.ssh.endpoint import SshEndpoint, known_as, of_jump, of_node
from orch.runner.ssh.host_keys import HostKey, KeySource, KnownHosts, revoked_key
from orch.runner.ssh.naming import absolute, located, names, pin_of
from orch.runner.ssh.pool import Patience, SshConnector, jump_failed
from orch.runner.ssh.public_keys import host_key_from_file, scan, unaccepted_key, unknown_key
from orch.runner.ssh.user_config import Hop, HostOptions, UserConfig, known_hosts_files
from orch.spec.access import Jump, SshAccess
from orch.spec.models.ssh import Host, SshConfig
from orch.spec.models.ssh import Jump as JumpSpec
from orch.spec.state import NodeState

AcceptNew = Literal["none", "named", "all"]
"""Which new host keys are used before a person has accepted them: none, those of the hosts in `rekeyed`, all.

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
    rekeyed: Collection[str] = (),
    accept_new: AcceptNew = "none",
    user_config: UserConfig | None = None,
) -> tuple[SshTarget | TargetError, ...]:
    """Every machine of `config`, in its order. Logs in to jump hosts only, once their keys are accepted.

    `pinned` holds the keys accepted before, `accepted` those that a person has accepted now, both as `pins`
    returns them. Hosts in `rekeyed` (nodes; jump hosts by name or address) are asked for their key even when
    one is pinned. A host whose key is unknown is asked for it; `accept_new` says whether that key is used. A
    host whose key is not used becomes a TargetError with HostKeyUnaccepted. Relative key files are in
    `folder`. Raises BadSshConfig.
    """
    connector = SshConnector(connect_timeout_s=float(config.connect_timeout_s))
    try:
        finder = _Finder(
            config,
            folder,
            pinned,
            accepted or {},
            frozenset(rekeyed),
            accept_new,
            user_config or UserConfig(),
            connector,
        )
        return finder.find()
    finally:
        connector.close()


@dataclass(frozen=True)
class _Route:
    """One machine with all settings merged, its own key and those of its jump hosts still unknown."""

    node: NodeState
    host_key_in_file: str | None
    known_as: str
    known_hosts: KnownHosts


@dataclass
class _Finder:
    _config: SshConfig
    _folder: Path
    _pinned: Mapping[str, str]
    _accepted: Mapping[str, str]
    _rekeyed: frozenset[str]
    _accept_new: AcceptNew
    _user_config: UserConfig
    _connector: SshConnector
    _files: dict[tuple[str, ...], KnownHosts] = field(default_factory=dict)
    # Jump hosts by address: what the file, or the user's configuration, calls them.
    _names_by_address: dict[str, list[str]] = field(default_factory=dict)
    _jump_keys: dict[tuple[Jump, ...], HostKey | RunnerError] = field(default_factory=dict)

    def find(self) -> tuple[SshTarget | TargetError, ...]:
        routes = self._routes()
        chains = {route.node.ssh.jump for route in routes if isinstance(route, _Route)}
        for length in range(1, max(map(len, chains), default=0) + 1):
            level = list(dict.fromkeys(chain[:length] for chain in chains if len(chain) >= length))
            self._jump_keys.update(zip(level, self._each(self._jump_key, level), strict=True))
        return tuple(self._each(self._target, routes))

    def _each(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if not items:
            return []
        with ThreadPoolExecutor(min(self._config.parallel, len(items)), "orch-target") as pool:
            return list(pool.map(work, items))

    # --- settings

    def _routes(self) -> list[_Route | TargetError]:
        host_names = names(self._config)
        duplicates = {name for name, count in Counter(host_names).items() if count > 1}
        machines = self._config.machines()
        entries = [host for host in self._config.hosts for _ in host.hostnames]
        routes: list[_Route | TargetError] = []
        for index, (name, host, entry) in enumerate(zip(host_names, machines, entries, strict=True)):
            if name in duplicates:
                error = RunnerError(
                    f"several hosts of the fleet are called {name}",
                    where=host.hostname,
                    hint="give each a `name` of its own",
                    code="ORCH143",
                )
                routes.append(TargetError(index, name, host.hostname, error))
                continue
            port_given = entry.port is not None or "port" in self._config.model_fields_set
            routes.append(self._route(index, name, host, host.port if port_given else None))
        return routes

    def _route(self, index: int, name: str, host: Host, port: int | None) -> _Route:
        options = self._user_config.lookup(host.hostname)
        jumps: tuple[Jump, ...] = ()
        command = None
        if host.proxy_jump is not None:
            jumps = self._chain([_as_hop(hop) for hop in host.proxy_jump])
        elif options.proxy_jump:
            jumps = self._chain([(hop, None) for hop in options.proxy_jump])
        else:
            command = options.proxy_command
        access = SshAccess(
            address=options.hostname or host.hostname,
            port=port or options.port or 22,
            user=host.user or options.user or getpass.getuser(),
            identity=host.identity_file or self._existing_identity(options),
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
        alias = options.known_as or known_as(access.address, access.port)
        known = self._known_hosts(options, host.hostname, access.address, access.port, access.user)
        return _Route(node, host.host_key, alias, known)

    def _chain(
        self, hops: Sequence[tuple[Hop, str | None]], visited: frozenset[str] = frozenset()
    ) -> tuple[Jump, ...]:
        """Hops with what the user's configuration says of them, and the way to the first one before it."""
        jumps: list[Jump] = []
        for position, (hop, identity) in enumerate(hops):
            options = self._user_config.lookup(hop.host)
            if position == 0 and options.proxy_jump and hop.host not in visited:
                earlier_hops = [(each, None) for each in options.proxy_jump]
                jumps += self._chain(earlier_hops, visited | {hop.host})
            address = options.hostname or hop.host
            self._names_by_address.setdefault(address, []).append(hop.host)
            jumps.append(
                Jump(
                    address=address,
                    port=hop.port or options.port or 22,
                    user=hop.user or options.user or getpass.getuser(),
                    identity=identity or self._existing_identity(options),
                    proxy_command=options.proxy_command if position == 0 else None,
                    ssh_alias=hop.host if position == 0 and options.proxy_command else None,
                )
            )
        return tuple(jumps)

    def _existing_identity(self, options: HostOptions) -> str | None:
        """The first of the user's key files for a host that is there."""
        return next((path for path in options.identities if Path(path).expanduser().is_file()), None)

    def _known_hosts(self, options: HostOptions, name: str, address: str, port: int, user: str) -> KnownHosts:
        files = known_hosts_files(options, name=name, address=address, port=port, user=user)
        return self._files.setdefault(files, KnownHosts(files))

    # --- keys

    def _target(self, route: _Route | TargetError) -> SshTarget | TargetError:
        if isinstance(route, TargetError):
            return route
        node = route.node
        try:
            hops = self._hops(node.ssh.jump)
            node = node.reached(jump=tuple(jump for jump, _ in hops))
            rekeyed = node.name in self._rekeyed
            key = self._accepted_key(node.name, rekeyed=rekeyed)
            if route.host_key_in_file is not None:
                key = host_key_from_file(of_node(node), route.host_key_in_file)
            elif key is None:
                peer = of_node(located(node, self._folder))
                key = self._host_key_of(peer, node.name, route.known_as, route.known_hosts, rekeyed=rekeyed)
            if route.known_hosts.revoked(key.public):
                raise revoked_key(of_node(node), key)
        except RunnerError as error:
            return TargetError(node.index, node.name, node.ssh.address, error)
        return SshTarget(
            node.reached(host_key=key.public),
            key.source,
            key.fingerprint,
            tuple(hops),
            unverified_key=key.fingerprint if key.source == "scanned" else None,
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
        names = self._names_by_address[last.address]
        rekeyed = not self._rekeyed.isdisjoint({last.address, *names})
        accepted_key = self._accepted_key(pin_of(last), rekeyed=rekeyed)
        options = self._user_config.lookup(names[0])
        known = self._known_hosts(options, names[0], last.address, last.port, last.user)
        if accepted_key is not None:
            banned = known.revoked(accepted_key.public)
            return revoked_key(of_jump(chain), accepted_key) if banned else accepted_key
        try:
            chain_with_keys = [*(jump for jump, _ in self._hops(chain[:-1])), last]
            peer = of_jump(tuple(absolute(jump, self._folder) for jump in chain_with_keys))
            alias = options.known_as or known_as(last.address, last.port)
            return self._host_key_of(peer, pin_of(last), alias, known, rekeyed=rekeyed)
        except (HostKeyRefused, JumpUnreachable) as error:
            return error
        except HostUnreachable as error:
            return jump_failed(of_jump(chain), error)

    def _accepted_key(self, pin: str, *, rekeyed: bool) -> HostKey | None:
        """The key that was accepted, now or before."""
        if pin in self._accepted:
            return HostKey(self._accepted[pin], "accepted")
        pinned = self._pinned.get(pin)
        return HostKey(pinned, "pinned") if pinned and not rekeyed else None

    def _host_key_of(
        self, peer: SshEndpoint, pin: str, alias: str, files: KnownHosts, *, rekeyed: bool
    ) -> HostKey:
        """The key of a host that the file does not give and nobody has accepted yet.

        It comes from the user's known_hosts (not with `rekeyed`), else from the host itself. Raises
        HostKeyUnaccepted for a key from the host that may not be used before a person has accepted it.
        """
        known_key = None if rekeyed else files.lookup(alias)
        if known_key is not None:
            return known_key
        strict = self._config.known_hosts == "strict"
        connect_s = float(self._config.connect_timeout_s)
        try:
            key = scan(self._connector, peer, Patience(connect_s, connect_s))
        except HostUnreachable as error:
            if strict:
                raise unknown_key(peer, error) from error
            raise
        if files.revoked(key.public):
            raise revoked_key(peer, key)
        if strict:
            raise unknown_key(peer, key)
        if self._accept_new == "all" or (self._accept_new == "named" and rekeyed):
            return key
        raise unaccepted_key(peer, key, pin)


def _as_hop(jump: JumpSpec) -> tuple[Hop, str | None]:
    port = jump.port if "port" in jump.model_fields_set else None
    return Hop(jump.hostname, jump.user, port), jump.identity_file
