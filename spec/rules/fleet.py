"""Rules between the properties of a fleet, between the hosts of an SSH fleet, and of a volume."""

from __future__ import annotations

import os
import stat
from typing import cast

from orch.spec.diagnostics import Related, Severity
from orch.spec.document.defaults import PROVISIONED
from orch.spec.document.draft import Draft, Path_, folder_of
from orch.spec.grammar.blocks import blocks_of, divisors
from orch.spec.grammar.hosts import folded_size
from orch.spec.grammar.values import Problem
from orch.spec.models import Fleet, Nodes, Volume
from orch.spec.models.backends import effective, made_with_runs, title
from orch.spec.models.selection import has_no_driver
from orch.spec.models.ssh import Host
from orch.spec.rules import array_index, environment, file_systems
from orch.spec.rules.rule import Findings, Rule
from orch.spec.rules.unsupported import backends_hint
from orch.spec.suggest import few, listed


def fleet_of(draft: Draft) -> Fleet:
    return cast(Fleet, draft.partial)


_WHY = {
    "nodes": "an SSH fleet has one node per host, so `nodes` cannot be set",
    "resources": "the resources of existing hosts are found out, not asked for",
}


def _named_cluster(fleet: Fleet) -> Path_ | None:
    """Where a fleet names a cluster that is there already, which a backend takes in."""
    places = (i for i, each in enumerate(fleet.backend_options) if each.get("cluster") is not None)
    return next((("backend_options", index, "cluster") for index in places), None)


def nodes_or_hosts(draft: Draft) -> Findings:
    if draft.written("ssh_config"):
        related = (Related(draft.span(("ssh_config",), key=True), "the hosts of the fleet"),)
        for name in PROVISIONED:
            if draft.written(name):
                summary = _WHY.get(
                    name, f"`{name}` is for nodes that are provisioned, not for existing hosts"
                )
                yield draft.diagnostic(
                    "ORCH140", (name,), summary, key=True, hint=f"remove `{name}`", related=related
                )
    elif (cluster := _named_cluster(fleet_of(draft))) is not None:
        related = (Related(draft.span(cluster), "the cluster that is taken in"),)
        for name in PROVISIONED:
            if draft.written(name) and name not in ("backend", "backends", "backend_options"):
                summary = f"`{name}` is for nodes that are provisioned, not for a cluster that is there"
                yield draft.diagnostic(
                    "ORCH140", (name,), summary, key=True, hint=f"remove `{name}`", related=related
                )
    elif fleet_of(draft).nodes is None:
        yield draft.diagnostic(
            "ORCH141",
            (),
            "a fleet needs `nodes` (provisioned) or `ssh_config` (existing hosts)",
            hint="add `nodes: 2`",
        )


def backends_have_drivers(draft: Draft) -> Findings:
    """Names without a driver warn while another is left, and are one error when none is."""
    backends = fleet_of(draft).written_backends
    if backends is None:
        return
    usable = [name for name in backends if not has_no_driver(name)]
    if not usable:
        summary = f"orch has no driver for {backends[0]}" if backends else "no backend is listed"
        yield draft.diagnostic("ORCH201", ("backends",), summary, hint=backends_hint())
        return
    for index, name in enumerate(backends):
        if has_no_driver(name):
            summary = f"orch has no driver for {name}; using {', '.join(usable)}"
            yield draft.diagnostic("ORCH190", ("backends", index), summary, severity=Severity.WARNING)


def options_have_drivers(draft: Draft) -> Findings:
    first: dict[str, int] = {}
    for index, options in enumerate(fleet_of(draft).backend_options):
        name = str(options["type"])
        if has_no_driver(name):
            summary = f"orch has no driver for {name}: these options do nothing"
            yield draft.diagnostic(
                "ORCH190", ("backend_options", index, "type"), summary, severity=Severity.WARNING
            )
        if name in first:
            other = draft.span(("backend_options", first[name], "type"))
            yield draft.diagnostic(
                "ORCH153",
                ("backend_options", index, "type"),
                f"options of {name} are given twice",
                hint="keep one entry",
                related=(Related(other, "given here first"),),
            )
        first.setdefault(name, index)


def nodes_are_bounded(draft: Draft) -> Findings:
    nodes = fleet_of(draft).nodes
    if nodes is not None and nodes.max is None and fleet_of(draft).budget is None:
        most = max(nodes.target - nodes.spare, 1) * 4
        bounded = f"`max: {most}`" if nodes.spare else f"`{nodes.min}..{most}`"
        yield draft.diagnostic(
            "ORCH192",
            ("nodes",),
            "this fleet has no upper bound",
            severity=Severity.WARNING,
            hint=f"write {bounded}, another maximum, or a `budget`",
        )


def nodes_with_runs(draft: Draft, fleet: Fleet) -> Nodes | None:
    """`0..N` of a fleet whose nodes are made with runs, where its file says otherwise; else None."""
    nodes = fleet.nodes
    backends = effective(fleet.written_backends, draft.context.backends)
    if nodes is None or not (nodes.min or nodes.target) or not made_with_runs(backends):
        return None
    return nodes.model_copy(update={"min": 0, "target": 0, "max": nodes.for_runs, "spare": 0})


def nodes_are_made_with_runs(draft: Draft) -> Findings:
    fleet = fleet_of(draft)
    nodes = nodes_with_runs(draft, fleet)
    if nodes is not None and "backends" not in draft.broken:
        where = few([title(name) for name in effective(fleet.written_backends, draft.context.backends)])
        yield draft.diagnostic(
            "ORCH195",
            ("nodes",),
            f"nodes on {where} are made with a run and go with it: this is read as `{nodes.plain()}`",
            severity=Severity.WARNING,
            hint=f"write `nodes: {nodes.plain()}`",
        )


def disk_of_local_nodes(draft: Draft) -> Findings:
    fleet = fleet_of(draft)
    if "disk_mib" in fleet.resources.model_fields_set and "local" in effective(
        fleet.written_backends, draft.context.backends
    ):
        yield draft.diagnostic(
            "ORCH196",
            ("resources", "disk"),
            "local nodes share the disk of this machine, `disk` sets no limit",
            key=True,
            severity=Severity.WARNING,
        )


def unwatched_nodes(draft: Draft) -> Findings:
    health = fleet_of(draft).health
    if health.gate != "none":
        return
    written = health.model_fields_set - {"gate"}
    for name, field in (("interval", "interval_s"), *((each, each) for each in _WATCHED)):
        if field in written:
            yield draft.diagnostic(
                "ORCH191",
                ("health", name),
                f"with `gate: none` nothing is examined: `{name}` does nothing",
                key=True,
                severity=Severity.WARNING,
                hint="remove it, or write `gate: light`",
            )


_WATCHED = ("auto_replace", "max_replacements")  # `min_busbw` counts for `orch verify` too


def blocks_divide_gpus(draft: Draft) -> Findings:
    """Told here when none of the counts that are asked for divides; backends look at the machine itself."""
    fleet = fleet_of(draft)
    count = fleet.resources.gpu.count
    if not count.min or count.max is None:
        return
    unfit: Problem | None = None
    for gpus in range(int(count.min), int(count.max) + 1):
        try:
            blocks_of(fleet.blocks, gpus, 1)
            return
        except Problem as problem:
            unfit = problem
    if unfit is None:
        return
    summary, hint = unfit.summary, unfit.hint
    if count.min != count.max:
        most = int(count.max)
        summary = f"{count.min} to {most} GPUs do not split into {fleet.blocks} blocks"
        possible = {n for gpus in range(int(count.min), most + 1) for n in divisors(gpus)}
        hint = f"possible: {', '.join(map(str, sorted(possible)))}"
    yield draft.diagnostic(
        unfit.code,
        ("blocks",),
        summary,
        hint=hint,
        related=(Related(draft.span(("resources", "gpu")), "the GPUs of a node"),),
    )


def reservation_is_not_spot(draft: Draft) -> Findings:
    """Of fleets and runs alike."""
    policy = cast(Fleet, draft.partial).spot_policy
    if not draft.written("reservation") or not draft.written("spot_policy") or policy == "on-demand":
        return
    spot = policy == "spot"
    yield draft.diagnostic(
        "ORCH149",
        ("spot_policy",),
        "reserved capacity is never spot",
        severity=Severity.ERROR if spot else Severity.WARNING,
        hint="remove `spot_policy`",
        related=(Related(draft.span(("reservation",), key=True), "the reservation"),),
    )


def init_steps_are_whole(draft: Draft) -> Findings:
    for index, step in enumerate(fleet_of(draft).init):
        if (step.run is None) == (step.file is None):
            yield draft.diagnostic(
                "ORCH158",
                ("init", index),
                "a step has either `run` or `file`",
                hint="add one of them" if step.run is None else "remove one of them",
            )


def mounts_have_one_origin(draft: Draft) -> Findings:
    for index, mount in enumerate(fleet_of(draft).mounts):
        origins = [name for name in ("id", "source", "create") if getattr(mount, name) is not None]
        if len(origins) != 1:
            yield draft.diagnostic(
                "ORCH158",
                ("mounts", index),
                "a mount has exactly one of `id`, `source` and `create`",
                hint=f"keep one of {listed(origins)}"
                if origins
                else "add `source: server:/export`, or `create: true`",
            )


def _provisioned_on(draft: Draft) -> tuple[str, ...]:
    """Where a fleet goes, as far as the file or orch.yml says."""
    written = fleet_of(draft).written_backends
    return effective(written, draft.context.backends) if written or draft.context.backends else ()


def mounts_are_of_the_backend(draft: Draft) -> Findings:
    """File systems of one cloud are reached from its machines alone."""
    fleet = fleet_of(draft)
    used = {"ssh"} if draft.written("ssh_config") else set(_provisioned_on(draft))
    for index, mount in enumerate(fleet.mounts):
        cloud = mount.cloud
        if cloud is not None and used and cloud not in used:
            yield draft.diagnostic(
                "ORCH262",
                ("mounts", index, "type"),
                f"{mount.type} is a file system of {title(cloud)}, and this fleet goes to "
                f"{listed([title(name) for name in sorted(used)])}",
                hint=f"write `backends: [{cloud}]`, or `type: nfs` with the address of a server",
            )


def mount_paths_differ(draft: Draft) -> Findings:
    first: dict[str, int] = {}
    for index, mount in enumerate(fleet_of(draft).mounts):
        if mount.path in first:
            yield draft.diagnostic(
                "ORCH153",
                ("mounts", index, "path"),
                f"{mount.path} is mounted twice",
                hint="give each mount its own path",
                related=(Related(draft.span(("mounts", first[mount.path])), "mounted here first"),),
            )
        first.setdefault(mount.path, index)


def _hosts(draft: Draft) -> tuple[tuple[Path_, Host], ...]:
    config = fleet_of(draft).ssh_config
    return tuple(
        (("ssh_config", "hosts", index), host) for index, host in enumerate(config.hosts if config else ())
    )


def hosts_are_listed(draft: Draft) -> Findings:
    config = fleet_of(draft).ssh_config
    if config is not None and not config.hosts:
        yield draft.diagnostic(
            "ORCH142", ("ssh_config", "hosts"), "no hosts", hint="list at least one address"
        )


def hosts_differ(draft: Draft) -> Findings:
    """The same address and port twice; a jump host in between makes it another host."""
    config = fleet_of(draft).ssh_config
    first_of: dict[tuple[object, ...], Path_] = {}
    for path, host in _hosts(draft):
        port = host.port or (config.port if config else 22)
        for name in host.hostnames:
            key = (name, port, host.proxy_jump)
            if key in first_of:
                earlier = draft.span(first_of[key])
                yield draft.diagnostic(
                    "ORCH143",
                    path,
                    f"host {name} is listed twice, first at {earlier.line}:{earlier.column}",
                    hint="remove one of them",
                    related=(Related(earlier, "listed here first"),),
                )
                break
            first_of[key] = path


def internal_addresses_of_all(draft: Draft) -> Findings:
    hosts = _hosts(draft)
    having = [path for path, host in hosts if host.internal_ip is not None]
    without_address = [host.hostname for _, host in hosts if host.internal_ip is None]
    if having and without_address:
        few = ", ".join(without_address[:5]) + (", …" if len(without_address) > 5 else "")
        yield draft.diagnostic(
            "ORCH144",
            (*having[0], "internal_ip"),
            f"`internal_ip` must be on all hosts or none; missing on {few}",
            key=True,
            hint="add it to each, or give the `network` they share",
        )
    for path, host in hosts:
        if host.internal_ip is not None and folded_size(host.hostname) > 1:
            yield draft.diagnostic(
                "ORCH144",
                (*path, "internal_ip"),
                f"one `internal_ip` cannot belong to {folded_size(host.hostname)} hosts",
                key=True,
                hint="write the hosts one by one, or give the `network` they share",
            )


def internal_addresses_differ(draft: Draft) -> Findings:
    first: dict[str, Path_] = {}
    for path, host in _hosts(draft):
        if host.internal_ip is None:
            continue
        if host.internal_ip in first:
            earlier = draft.span((*first[host.internal_ip], "internal_ip"))
            yield draft.diagnostic(
                "ORCH143",
                (*path, "internal_ip"),
                f"{host.internal_ip} is given to two hosts, first at {earlier.line}:{earlier.column}",
                hint="each host has its own address",
                related=(Related(earlier, "given here first"),),
            )
        first.setdefault(host.internal_ip, path)


def network_or_addresses(draft: Draft) -> Findings:
    config = fleet_of(draft).ssh_config
    having = next((path for path, host in _hosts(draft) if host.internal_ip is not None), None)
    if config is not None and config.network is not None and having is not None:
        yield draft.diagnostic(
            "ORCH145",
            ("ssh_config", "network"),
            "`network` and `internal_ip` say the same thing in two ways",
            key=True,
            hint="use one of them",
            related=(Related(draft.span((*having, "internal_ip"), key=True), "an `internal_ip`"),),
        )


def key_files_are_usable(draft: Draft) -> Findings:
    """A private key that is not there, or that others may read: ssh refuses it."""
    config = fleet_of(draft).ssh_config
    if config is None:
        return
    places: list[tuple[Path_, str | None]] = [(("ssh_config", "identity_file"), config.identity_file)]
    places += [((*path, "identity_file"), host.identity_file) for path, host in _hosts(draft)]
    for base, jumps in (
        (("ssh_config", "proxy_jump"), config.proxy_jump),
        *(((*path, "proxy_jump"), host.proxy_jump) for path, host in _hosts(draft)),
    ):
        for index, jump in enumerate(jumps or ()):
            many = len(jumps or ()) > 1
            places.append(
                ((*base, index, "identity_file") if many else (*base, "identity_file"), jump.identity_file)
            )
    reported: set[str] = set()
    for path, file in places:
        if file is not None and file not in reported and "${{" not in file:
            reported.add(file)
            yield from _key_file(draft, path, file)


def _key_file(draft: Draft, path: Path_, file: str) -> Findings:
    folder, fence = folder_of(draft), draft.context.fence
    if fence is not None and (file.startswith("~") or not fence.holds(folder / file)):
        return  # told by `spec/loader/untrusted.py`
    where = os.path.join(folder, os.path.expanduser(file))
    severity = draft.missing
    try:
        mode = os.stat(where).st_mode
    except (OSError, ValueError):
        summary = f"there is no key file {file}"
        hint = "check the path, or remove the line to use the SSH agent"
        yield draft.diagnostic("ORCH151", path, summary, severity=severity, hint=hint)
        return
    if not stat.S_ISREG(mode):
        yield draft.diagnostic(
            "ORCH151", path, f"{file} is not a file", severity=severity, hint="name the private key"
        )
    elif mode & 0o077:
        yield draft.diagnostic(
            "ORCH152",
            path,
            f"others may read the key file {file}: ssh refuses it",
            severity=severity,
            hint=f"`chmod 600 {file}`",
        )


def volume_is_whole(draft: Draft) -> Findings:
    volume = cast(Volume, draft.partial)
    if volume.region is None and volume.backend not in ("local", "kubernetes"):
        yield draft.diagnostic(
            "ORCH113", (), f"a volume of {volume.backend} needs `region`", hint="add `region: …`"
        )
    if volume.size_mib is None and volume.volume_id is None and volume.claim_name is None:
        yield draft.diagnostic(
            "ORCH113", (), "a volume needs `size`, or the id of an existing one", hint="add `size: 100GB`"
        )


def volume_has_driver(draft: Draft) -> Findings:
    from orch.spec.models.volume import VOLUME_BACKENDS

    backend = cast(Volume, draft.partial).backend
    if backend not in VOLUME_BACKENDS:
        yield draft.diagnostic(
            "ORCH116",
            ("backend",),
            f"there are no volumes on {backend}",
            hint="`mounts` of a fleet mounts a file system that is there already; volumes may be on "
            + listed(VOLUME_BACKENDS),
        )


RULES = (
    Rule(("nodes", "ssh_config", "backend_options"), nodes_or_hosts),
    Rule(("backends",), backends_have_drivers),
    Rule(("backend_options",), options_have_drivers),
    Rule(("backends", "resources"), disk_of_local_nodes),
    Rule(("health",), unwatched_nodes),
    Rule(("nodes", "budget"), nodes_are_bounded),
    Rule(("nodes", "backends"), nodes_are_made_with_runs),
    Rule(("blocks", "resources"), blocks_divide_gpus),
    Rule(("spot_policy", "reservation"), reservation_is_not_spot),
    Rule(("init",), init_steps_are_whole),
    Rule(("mounts",), mounts_have_one_origin),
    Rule(("mounts",), mount_paths_differ),
    Rule(("mounts", "backends", "ssh_config"), mounts_are_of_the_backend),
    *file_systems.RULES,
    *environment.RULES,
    *array_index.RULES,
    Rule(("init",), environment.variables_of_steps),
    Rule(("ssh_config",), hosts_are_listed),
    Rule(("ssh_config",), hosts_differ),
    Rule(("ssh_config",), internal_addresses_of_all),
    Rule(("ssh_config",), internal_addresses_differ),
    Rule(("ssh_config",), network_or_addresses),
    Rule(("ssh_config",), key_files_are_usable),
    Rule(("ssh_config",), environment.variables_of_hosts),
)
VOLUME_RULES = (
    Rule(("backend", "region", "size", "volume_id", "claim_name"), volume_is_whole),
    Rule(("backend",), volume_has_driver),
)
