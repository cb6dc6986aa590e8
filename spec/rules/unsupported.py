"""Properties that the language has and this version does not act on: the one table of them.

`validate` accepts them with a warning; what launches (`up`, `run`) refuses each that is written (ORCH118):
accepting a property and doing nothing with it would be a lie. A row leaves this table when the runtime acts
on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from orch.spec.diagnostics import Diagnostic, Severity, property_path
from orch.spec.document.draft import Draft, Path_
from orch.spec.document.yaml_nodes import Mapping, Node, Scalar, Sequence
from orch.spec.models import BackendSettings, DevEnvironment, Fleet, Volume
from orch.spec.models.backends import effective, made_with_runs, provisioned, settings_model, title
from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.project import ProjectSettings
from orch.spec.rules.file_systems import CREATED
from orch.spec.suggest import listed

Findings = Iterator[Diagnostic]

_LOCAL = "local nodes have none"
_OFFER = "there is nothing to choose from among local nodes"

# Kinds of documents that can be launched.
LAUNCHED = ("fleet", "task", "dev-environment", "volume", "project")

# Where steps of `init` are sent to nodes that are there.
_SENT = {"local": "local nodes", "ssh": "existing hosts"}

_CHOICE: dict[str, str | None] = {
    "regions": _OFFER,
    "region": _OFFER,
    "availability_zones": _OFFER,
    "zones": _OFFER,
    "zone": _OFFER,
    "instance_types": _OFFER,
    "spot_policy": _OFFER,
    "max_price": _OFFER,
    "reservation": _OFFER,
    "tags": None,
    "retry": None,
}
# Property -> what to do instead. `[]` stands for any item of a list.
ROWS: dict[str, dict[str, str | None]] = {
    "fleet": {
        **_CHOICE,
        "backend_options": None,
        "network": "the network of local nodes is created with them",
        "network.name": "fleets of GCP share networks by name",
        "network.extra_vpcs": "networks beside the first are GCP's; `interconnect` says what is wanted",
        "network.roce_vpcs": "RDMA networks of their own are GCP's; `interconnect` says what is wanted",
        "network.fabric": None,
        "os_image": _LOCAL,
        "init": "put the steps into the job's image or `commands`",
        "mounts": "use `volumes` of the task",
        "scratch": None,
        "scratch.fs": "only disks of clouds' machines are given a file system",
        "topology": None,
        "gang": None,
        "ttl": "delete the fleet with `orch down`",
        "budget": _LOCAL,
        "nodes.spare": "write so many nodes more",
        "partitions": "name the fleet in the task's `fleets`",
        "resources.shm_size": "write it in the task's `resources`: it is of a job",
    },
    "task": {
        "preempt": None,
        "schedule": None,
        "depends_on": None,
        "singleton": None,
    },
    "volume": {},
    "project": {
        "defaults.fleet.name": "each fleet has its own",
        "defaults.task.name": "each task has its own",
        **{
            f"{base}.{key}": hint
            for base in ("backends[]", "projects[].backends[]")
            for key, hint in {
                "engine": None,
                "subnet": None,
            }.items()
        },
    },
}

ROWS["dev-environment"] = {
    **{name: hint for name, hint in ROWS["task"].items() if name in DevEnvironment.properties()},
    "version": "the IDE brings the server that it needs",
}


def backends_hint(configured: Iterable[str] = ()) -> str:
    """Return a hint for a backend that cannot be used: one that orch.yml configures, else any usable one."""
    known = frozenset(configured)
    if own := [name for name in provisioned() if name in known]:
        return f"use {listed(own)}, which `orch.yml` configures"
    return f"use {listed(provisioned())}, or existing hosts with `ssh_config`"


def acted_on(backend: str) -> frozenset[str]:
    """The rows of `ROWS` that a backend acts on; `ssh` stands for existing hosts."""
    model = settings_model(backend)
    return model.supports if model else frozenset()


def not_acted_on(draft: Draft) -> tuple[Diagnostic, ...]:
    """Diagnostics for properties of a document without effect, each at its place."""
    if draft.kind not in LAUNCHED:
        return (_refusal(draft, ("type",), f"`type: {draft.kind}`", None),) if draft.kind else ()
    diagnostics = list(_rows(draft, draft.node, (), ""))
    if draft.partial is not None:
        for check in _BY_VALUE[draft.kind]:
            diagnostics += check(draft)
    return tuple(diagnostics)


def _refusal(draft: Draft, path: Path_, what: str, hint: str | None, *, key: bool = False) -> Diagnostic:
    return draft.diagnostic("ORCH118", path, f"{what} is not supported by this version", key=key, hint=hint)


def _instead(row: str, backends: Iterable[str]) -> str | None:
    """Return the backend's advice on what to do instead of a property that it does not support; None without
    any."""
    models = (settings_model(name) for name in backends)
    return next((each.instead[row] for each in models if each is not None and row in each.instead), None)


def _rows(draft: Draft, node: Node, path: Path_, pattern: str) -> Findings:
    if isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _rows(draft, item, (*path, index), f"{pattern}[]")
    if not isinstance(node, Mapping):
        return
    rows = ROWS[draft.kind]
    backends = _backends(draft)
    for key, entry in node.entries.items():
        below, place = f"{pattern}.{key}" if pattern else key, (*path, key)
        if isinstance(entry.value, Scalar) and entry.value.is_null:
            continue
        able = [name for name in backends if below in acted_on(name)]
        if below in rows and not able:
            hint = _instead(below, backends) or rows[below]
            yield _refusal(draft, place, f"`{property_path(place)}`", hint, key=True)
        elif below in rows and len(able) < len(backends) and below != "backend_options":
            others = ", ".join(title(name) for name in backends if name not in able)
            summary = f"`{property_path(place)}` on {others}"
            yield _refusal(draft, place, summary, f"write `backends: [{', '.join(able)}]`", key=True)
        elif any(row.startswith((f"{below}.", f"{below}[")) for row in rows):
            yield from _rows(draft, entry.value, place, below)


def _backends(draft: Draft) -> tuple[str, ...]:
    """Return the backends that may have the nodes of a fleet; `ssh` for existing hosts."""
    if draft.kind != "fleet" or draft.partial is None or "backends" in draft.broken:
        return ()
    fleet = cast(Fleet, draft.partial)
    if "ssh_config" in fleet.model_fields_set:
        return ("ssh",)
    return effective(fleet.written_backends, draft.context.backends)


def _usable(draft: Draft) -> Findings:
    """Backends that no node can be created on yet."""
    backends = cast(Fleet, draft.partial).backends
    used = _backends(draft)
    if "backends" in draft.broken or used == ("ssh",):
        return
    if not used:
        named = backends[0] if backends else "(none)"
        yield _refusal(draft, ("backends",), f"backend {named}", backends_hint(draft.context.backends))
        return
    for index, name in enumerate(backends):
        if name not in used:
            summary = f"this version does not use {name} yet; using {', '.join(used)}"
            yield draft.diagnostic("ORCH118", ("backends", index), summary, severity=Severity.WARNING)


def _options(draft: Draft) -> Findings:
    """`backend_options` of other backends than those that are used."""
    used = _backends(draft)
    if not any("backend_options" in acted_on(name) for name in used):
        return  # refused as a whole
    for index, each in enumerate(cast(Fleet, draft.partial).backend_options):
        if each.get("type") not in used or "backend_options" not in acted_on(str(each.get("type"))):
            yield _refusal(draft, ("backend_options", index), f"an option of {each.get('type')}", None)


def _where_idle_nodes_stay(draft: Draft) -> tuple[str, ...]:
    """Backends of a fleet whose nodes do not end themselves."""
    used = _backends(draft)
    return () if used == ("ssh",) else tuple(name for name in used if "idle_duration" not in acted_on(name))


def _idleness(draft: Draft) -> Findings:
    staying = _where_idle_nodes_stay(draft)
    if draft.written("idle_duration") and staying and made_with_runs(staying):
        where = " and ".join(map(title, staying))
        summary = f"pods on {where} go with their run: none is ever idle"
        yield draft.diagnostic("ORCH118", ("idle_duration",), summary, key=True, severity=Severity.NOTE)
    elif draft.written("idle_duration") and staying:
        local = staying == ("local",)
        yield draft.diagnostic(
            "ORCH196" if local else "ORCH118",
            ("idle_duration",),
            "local nodes are not terminated when idle"
            if local
            else f"idle nodes on {listed([title(name) for name in staying])} are not terminated",
            key=True,
            severity=Severity.WARNING,
            hint="remove them with `orch down` when they are not needed",
        )


def _steps_at_boots(draft: Draft) -> Findings:
    """Only machines of clouds are started by orch; on others nothing of it stays that would run at a boot."""
    where = next((name for name in _backends(draft) if name in _SENT), None)
    for index, step in enumerate(cast(Fleet, draft.partial).init if where else ()):
        if step.when == "boot":
            summary = f"`when: boot` on {_SENT[cast(str, where)]}"
            hint = "write `when: change`, and let a service of the node's own do what each boot needs"
            yield _refusal(draft, ("init", index, "when"), summary, hint)


_MOUNT_SOURCES = {
    "fsx-lustre": "write `source: DNS-NAME@tcp:/MOUNT-NAME`, as `aws fsx describe-file-systems` tells both",
    "lustre": "write `source: MGS@tcp:/NAME`",
    "filestore": "write `source: ADDRESS:/SHARE`, as `gcloud filestore instances describe` tells both",
    "host": "write `source: /folder/of/node`",
}

# Kinds of file systems whose throughput nobody chooses: what they are called, and what to do.
_NO_THROUGHPUT = {
    "filestore": ("a Filestore", "remove it: the throughput follows from `size`"),
    "lambda-filesystem": ("a file system of Lambda", "remove it: nothing chooses that"),
}


def _mounts_in_part(draft: Draft) -> Findings:
    """File systems of one cloud in a fleet that may go to another, and ids that only a cloud can look up."""
    for index, mount in enumerate(cast(Fleet, draft.partial).mounts):
        others = [title(name) for name in _backends(draft) if mount.cloud not in (None, name)]
        if others:
            summary = f"`mounts[{index}]`, {mount.type}, on {', '.join(others)}"
            yield _refusal(draft, ("mounts", index), summary, f"write `backends: [{mount.cloud}]`")
        elif mount.create is not None and mount.type not in CREATED:
            summary = f"{mount.type} that orch creates"
            ours = [kind for kind, cloud in CREATED.items() if cloud in _backends(draft)]
            instead = f", or write `type: {' or '.join(ours)}`" if ours else ""
            hint = f"give the `source` of one that exists{instead}"
            yield _refusal(draft, ("mounts", index, "create"), summary, hint)
        elif (
            mount.create is not None and mount.type in _NO_THROUGHPUT and mount.create.throughput is not None
        ):
            whose, hint = _NO_THROUGHPUT[mount.type]
            yield _refusal(draft, ("mounts", index, "create", "throughput"), f"`throughput` of {whose}", hint)
        elif mount.id is not None and mount.type not in ("efs", "lambda-filesystem"):
            hint = _MOUNT_SOURCES.get(mount.type, "write `source: server:/export`")
            yield _refusal(draft, ("mounts", index, "id"), f"{mount.type} by an id", hint)


def _architecture(draft: Draft) -> Findings:
    if "local" in _backends(draft) and cast(Fleet, draft.partial).resources.cpu.arch is not None:
        yield draft.diagnostic(
            "ORCH196",
            ("resources", "cpu"),
            "local nodes have the architecture of this machine",
            severity=Severity.WARNING,
            hint="write the number alone",
        )


def _nodes_when_idle(draft: Draft) -> Findings:
    nodes = cast(Fleet, draft.partial).nodes
    # A range begins at its target, and a number with `idle_duration` is told there.
    smaller = nodes is not None and nodes.min < nodes.target
    if nodes is not None and smaller and _where_idle_nodes_stay(draft) and draft.node_at(("nodes", "min")):
        yield draft.diagnostic(
            "ORCH197",
            ("nodes", "min"),
            f"{nodes.target} nodes are created and stay: going down to {nodes.min} when they are idle is not "
            f"supported on {listed([title(name) for name in _where_idle_nodes_stay(draft)])}",
            key=True,
            severity=Severity.WARNING,
            hint="set the target to what you need",
        )


def _volume(draft: Draft) -> Findings:
    volume = cast(Volume, draft.partial)
    if "backend" in draft.broken:
        return
    if "volumes" not in acted_on(volume.backend):
        able = [name for name in provisioned() if "volumes" in acted_on(name)]
        hint = _instead("volumes", [volume.backend]) or f"volumes of {listed(able)} work"
        yield _refusal(draft, ("backend",), f"a volume of {title(volume.backend)}", hint)
        return
    model = settings_model(volume.backend)
    for name in model.volumes_lack if model is not None else ():
        if draft.written(name):
            what = f"`{name}` of a volume of {title(volume.backend)}"
            yield _refusal(draft, (name,), what, "remove it", key=True)
    if volume.sharing == "nfs" or (
        volume.sharing == "native" and not (model is not None and model.volumes_shared)
    ):
        hint = "name one volume for each node: `data-${{ orch.node_rank }}`"
        yield _refusal(draft, ("sharing",), f"`sharing: {volume.sharing}` of a disk", hint)
    if volume.kind != "block":
        hint = "mount a shared file system with `mounts` of the fleet, or use a disk: `kind: block`"
        yield _refusal(draft, ("kind",), f"`kind: {volume.kind}`", hint)


def _bases(draft: Draft) -> Iterator[tuple[Path_, tuple[BackendSettings, ...]]]:
    """Yield the paths and values of a project's backends: its own, and those of its entry in `projects`."""
    project = cast(ProjectSettings, draft.partial)
    yield ("backends",), project.all_backends
    if project.chosen is not None:
        yield ("projects", project.projects.index(project.chosen), "backends"), project.chosen.backends


def _other_backends(draft: Draft) -> Findings:
    for base, _ in _bases(draft):
        backends = draft.node_at(base)
        for index, item in enumerate(backends.items if isinstance(backends, Sequence) else ()):
            kind = item.entries.get("type") if isinstance(item, Mapping) else None
            if kind is not None and isinstance(kind.value, Scalar) and kind.value.text not in provisioned():
                yield _refusal(draft, (*base, index, "type"), f"backend {kind.value.text}", None)


# Switches of clouds -> what holds without them.
_SWITCHES: dict[str, str] = {
    "default_vpcs": "a fleet has a network of its own where none is given; name one with `vpc_ids`",
    "experimental_instance_types": "all types of the catalogue are offered; `orch offers` lists them",
    "community_cloud": "machines of the secure cloud are offered",
    "preview_features": "nothing of GCP that fleets use has to be switched on",
}


def _switches(draft: Draft) -> Findings:
    """Settings of clouds that would switch something on which is not there; off, they are what is so."""
    for base, values in _bases(draft):
        for index, backend in enumerate(values):
            for name, hint in _SWITCHES.items():
                if getattr(backend, name, None):
                    path = (*base, index, name)
                    yield _refusal(draft, path, f"`{property_path(path)}`", hint, key=True)


def _lacking(draft: Draft) -> Findings:
    """Settings that all clouds have in the language, and one has nothing for; at their default they say what
    is so."""
    for base, values in _bases(draft):
        for index, backend in enumerate(values):
            for name, hint in backend.lacks.items() if isinstance(backend, CloudSettings) else ():
                if getattr(backend, name) != type(backend).model_fields[name].default:
                    path = (*base, index, name)
                    what = f"`{property_path(path)}` of {backend.title}"
                    yield _refusal(draft, path, what, hint, key=True)


def _real_devices(draft: Draft) -> Findings:
    """Report `gpus` of local backends other than `none`: this machine's accelerators are not supported."""
    from orch.spec.models.backends.local import LocalSettings

    for base, values in _bases(draft):
        for index, backend in enumerate(values):
            if isinstance(backend, LocalSettings) and "gpus" in backend.model_fields_set:
                path = (*base, index, "gpus")
                if backend.gpus != "none":
                    hint = "write `none`; `simulate_gpu` gives nodes accelerators in number, without devices"
                    yield _refusal(draft, path, f"`{property_path(path)}: {backend.gpus}`", hint)


_BY_VALUE: dict[str, tuple[Callable[[Draft], Findings], ...]] = {
    "fleet": (
        _usable,
        _options,
        _idleness,
        _nodes_when_idle,
        _architecture,
        _steps_at_boots,
        _mounts_in_part,
    ),
    "task": (),
    "dev-environment": (),
    "volume": (_volume,),
    "project": (_other_backends, _switches, _lacking, _real_devices),
}
