"""Rules between the properties of a fleet, and of a volume."""

from __future__ import annotations

from typing import cast

from orch.spec.diagnostics import Related, Severity
from orch.spec.document.defaults import PROVISIONED
from orch.spec.document.draft import Draft, Path_
from orch.spec.grammar.blocks import blocks_of, divisors
from orch.spec.grammar.values import Problem
from orch.spec.models import Fleet, Nodes, Volume
from orch.spec.models.backends import effective, made_with_runs, title
from orch.spec.models.selection import has_no_driver
from orch.spec.rules import array_index, environment, file_systems, ssh_hosts
from orch.spec.rules.rule import Findings, Rule, fleet_of
from orch.spec.rules.unsupported import backends_hint
from orch.spec.suggest import few, listed

_WHY = {
    "nodes": "an SSH fleet has one node per host, so `nodes` cannot be set",
    "resources": "the resources of existing hosts are found out, not asked for",
}


def _named_cluster(fleet: Fleet) -> Path_ | None:
    """Return the place at which a fleet names an existing cluster, which a backend registers; None without
    one."""
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
    """Report `spot_policy` beside `reservation`, in fleets and runs (ORCH149)."""
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
    """Return the backends of a fleet, if the file or orch.yml names any."""
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
    *ssh_hosts.RULES,
    Rule(("ssh_config",), environment.variables_of_hosts),
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


VOLUME_RULES = (
    Rule(("backend", "region", "size", "volume_id", "claim_name"), volume_is_whole),
    Rule(("backend",), volume_has_driver),
)
