"""Rules between documents: one function per rule, all in one table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from orch.spec.diagnostics import Diagnostic, Related, Severity
from orch.spec.document.draft import Draft, Path_
from orch.spec.document.yaml_nodes import Sequence as SequenceNode
from orch.spec.grammar.values import shown
from orch.spec.models import BACKEND_MODELS, Fleet
from orch.spec.models.run import Run
from orch.spec.rules.rule import Findings, fleet_of
from orch.spec.rules.task import task_of
from orch.spec.suggest import hint_for, listed

_FEW = 20  # fleets that a task is compared with, and unknown runs that get a suggestion
_KNOWN = 1000  # names that a suggestion is chosen from


def names_differ(drafts: Sequence[Draft]) -> Findings:
    """Two documents of one type and name; unnamed runs get a name of their own each."""
    first: dict[tuple[str, str], Draft] = {}
    for draft in drafts:
        if draft.partial is None or "name" in draft.broken or draft.kind in BACKEND_MODELS:
            continue
        if draft.kind == "project":
            name, summary = draft.source.file, "this file holds a second document"
        else:
            name = getattr(draft.partial, "name", None)
            summary = f"there is another {draft.kind} named '{name}'"
        if not name:
            continue
        other = first.setdefault((draft.kind, name), draft)
        if other is not draft:
            path = ("name",) if draft.written("name") else ()
            earlier = other.span(("name",) if other.written("name") else ())
            yield draft.diagnostic(
                "ORCH170",
                path,
                summary,
                hint="keep one document" if draft.kind == "project" else "give each its own name",
                related=(Related(earlier, "the first one"),),
            )


def hosts_belong_to_one_fleet(drafts: Sequence[Draft]) -> Findings:
    first: dict[tuple[object, ...], tuple[Draft, int]] = {}
    for draft in drafts:
        config = fleet_of(draft).ssh_config if draft.kind == "fleet" and draft.partial is not None else None
        if config is None or "ssh_config" in draft.broken:
            continue
        for index, host in enumerate(config.hosts):
            for name in host.hostnames:
                key = (name, host.port or config.port, host.proxy_jump or config.proxy_jump)
                other, at = first.setdefault(key, (draft, index))
                if other is draft:
                    continue
                earlier = other.span(("ssh_config", "hosts", at))
                yield draft.diagnostic(
                    "ORCH171",
                    ("ssh_config", "hosts", index),
                    f"host {name} belongs to fleet '{fleet_of(other).name}' too",
                    hint="a host belongs to one fleet: remove one of them",
                    related=(Related(earlier, f"fleet '{fleet_of(other).name}'"),),
                )
                break


def dependencies_exist(drafts: Sequence[Draft]) -> Findings:
    """A run or fleet of another file or of the state may be meant: a warning."""
    for noun in _NAMED:
        names = {name for draft in drafts if (name := _name(draft, noun))}
        known = sorted(names)[:_KNOWN]
        guesses = 0
        for draft in drafts:
            for path, name in _dependencies(draft, noun):
                if name in names or (noun == "run" and _of_array(name) in names):
                    continue
                guesses += 1
                close = hint_for(name, known) if guesses <= _FEW else None
                yield draft.diagnostic(
                    "ORCH174",
                    path,
                    f"no {noun} {shown(name)} in these files",
                    severity=Severity.WARNING,
                    hint=close or _ELSEWHERE[noun],
                )


def _of_array(run: str) -> str:
    return run.rpartition("_")[0] if re.fullmatch(r".+_[0-9]+", run) else run


def dependencies_end(drafts: Sequence[Draft]) -> Findings:
    """No run and no fleet waits for itself, directly or through others."""
    for noun in _NAMED:
        yield from _circles(drafts, noun)


def _circles(drafts: Sequence[Draft], noun: str) -> Findings:
    waits: dict[str, tuple[Draft, Path_, str]] = {}
    graph: dict[str, list[tuple[Path_, str]]] = {}
    owners: dict[str, Draft] = {}
    for draft in drafts:
        name = _name(draft, noun)
        if name and name not in owners:
            owners[name] = draft
            graph[name] = list(_dependencies(draft, noun))
    finished: set[str] = set()
    for start in graph:
        trail: dict[str, None] = {}
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            name, step = stack.pop()
            if step == 0:
                if name in finished:
                    continue
                trail[name] = None
            following = graph[name]
            if step == len(following):
                del trail[name]
                finished.add(name)
                continue
            stack.append((name, step + 1))
            path, other = following[step]
            if other in trail:
                waits.setdefault(other, (owners[name], path, _circle(list(trail), other)))
            elif other in graph and other not in finished:
                stack.append((other, 0))
    for draft, path, circle in waits.values():
        hint = "remove one of these dependencies"
        yield draft.diagnostic("ORCH175", path, f"these {noun}s wait for each other: {circle}", hint=hint)


def _circle(trail: list[str], name: str) -> str:
    names = trail[trail.index(name) :]
    shown_names = [*names[:8], "…"] if len(names) > 8 else names
    return " -> ".join([*shown_names, name])


# What may depend on others of its kind, by the documents that are it.
_NAMED = {"run": ("task", "dev-environment"), "fleet": ("fleet",)}

_ELSEWHERE = {
    "run": "a run of the stack may be meant; check its name",
    "fleet": "a fleet of another file may be meant, which has to be up first; check its name",
}


def _name(draft: Draft, noun: str) -> str | None:
    if draft.kind not in _NAMED[noun] or draft.partial is None or "name" in draft.broken:
        return None
    return cast("Run | Fleet", draft.partial).name


def _dependencies(draft: Draft, noun: str) -> Iterator[tuple[Path_, str]]:
    """The runs that a task waits for, or the fleets that a fleet does, each with its place."""
    if draft.partial is None or "depends_on" in draft.broken:
        return
    names: Sequence[str] = ()
    if noun == "run" and draft.kind == "task":
        names = [each.run for each in task_of(draft).depends_on]
    elif noun == "fleet" and draft.kind == "fleet":
        names = fleet_of(draft).depends_on
    many = isinstance(draft.node_at(("depends_on",)), SequenceNode)
    for index, name in enumerate(names):
        yield (("depends_on", index) if many else ("depends_on",)), name


def distributed_needs_cluster(drafts: Sequence[Draft]) -> Findings:
    for task, fleets in _runs_on(drafts, ("nodes", "groups"), ("placement",)):
        if _nodes(task) < 2 or any(fleet_of(fleet).placement == "cluster" for fleet in fleets):
            continue
        yield task.diagnostic(
            "ORCH241",
            _nodes_path(task),
            "distributed tasks need a fleet with `placement: cluster`",
            hint=f"add `placement: cluster` to {listed(fleet_of(fleet).name for fleet in fleets)}",
            related=tuple(Related(fleet.heading(), f"fleet '{fleet_of(fleet).name}'") for fleet in fleets),
        )


def run_fits_fleet(drafts: Sequence[Draft]) -> Findings:
    for task, fleets in _runs_on(drafts, ("nodes", "groups"), ("nodes",)):
        counts = [nodes for fleet in fleets if (nodes := fleet_of(fleet).nodes) is not None]
        most = [nodes.for_runs for nodes in counts]
        node_count = _nodes(task)
        if len(most) < len(fleets) or any(bound is None or bound >= node_count for bound in most):
            continue
        largest = max(bound for bound in most if bound is not None)
        yield task.diagnostic(
            "ORCH244",
            _nodes_path(task),
            f"this task needs {node_count} nodes, the fleet has at most {largest}"
            + (" without its spares" if any(nodes.spare for nodes in counts) else ""),
            hint=f"write `nodes: {largest}`, or enlarge the fleet",
            related=tuple(
                Related(fleet.span(("nodes",)), f"fleet '{fleet_of(fleet).name}'") for fleet in fleets
            ),
        )


def gpus_fit_instances(drafts: Sequence[Draft]) -> Findings:
    """A job takes whole blocks, a distributed one whole instances: a count below that matches nothing."""
    for task, fleets in _runs_on(
        drafts, ("resources", "nodes", "groups"), ("resources", "blocks", "ssh_config")
    ):
        gpu_count = cast(Run, task.partial).resources.gpu.count
        if not gpu_count.max or (task.kind == "task" and task_of(task).groups):
            continue
        distributed = _nodes(task) > 1
        if all(_too_small(int(gpu_count.max), fleet_of(fleet), distributed) for fleet in fleets):
            yield _gpu_mismatch(task, fleets[0], int(gpu_count.max), distributed)


def _too_small(gpu_count: int, fleet: Fleet, distributed: bool) -> bool:
    gpus = fleet.resources.gpu.count
    exact = gpus.min is not None and gpus.min == gpus.max and fleet.ssh_config is None
    return exact and gpu_count < int(gpus.min or 0) and (distributed or fleet.blocks == 1)


def _gpu_mismatch(task: Draft, fleet: Draft, gpu_count: int, distributed: bool) -> Diagnostic:
    model = fleet_of(fleet)
    gpus, blocks = int(model.resources.gpu.count.min or 0), model.blocks
    related = (Related(fleet.span(("resources", "gpu")), f"fleet '{model.name}'"),)
    asks = f"{gpu_count} GPU{'s' if gpu_count > 1 else ''}"
    if distributed and blocks != 1:
        all_blocks = f"all {gpus if blocks == 'auto' else blocks} blocks"
        summary = f"a distributed task takes whole instances ({all_blocks}), but asks for {asks}"
        return task.diagnostic(
            "ORCH242", ("resources", "gpu"), summary, hint=f"ask for `gpu: {gpus}`", related=related
        )
    summary = f"no instance fits: a job takes the whole instance of {gpus} GPUs, but asks for {asks}"
    hint = (
        f"ask for `gpu: {gpus}`"
        if distributed
        else f"set `blocks: {gpus}` on the fleet, or ask for `gpu: {gpu_count}..{gpus}`"
    )
    return task.diagnostic("ORCH243", ("resources", "gpu"), summary, hint=hint, related=related)


def _nodes(draft: Draft) -> int:
    return task_of(draft).all_nodes if draft.kind == "task" else cast(Run, draft.partial).nodes


def _nodes_path(draft: Draft) -> Path_:
    return ("groups",) if draft.kind == "task" and task_of(draft).groups else ("nodes",)


def _runs_on(
    drafts: Sequence[Draft], task_needs: tuple[str, ...], fleet_needs: tuple[str, ...]
) -> Iterator[tuple[Draft, tuple[Draft, ...]]]:
    """Tasks with the fleets that these files say they run on.

    That is: the fleets a task names, when all of them are in the files; for a task that names none, the
    fleets of its own file. Only documents without an error take part.
    """
    by_name: dict[str, list[Draft]] = {}
    by_file: dict[str, list[Draft]] = {}
    for draft in drafts:
        if draft.kind == "fleet" and draft.partial is not None:
            for name in (fleet_of(draft).name, *(each.name for each in fleet_of(draft).partitions)):
                by_name.setdefault(name, []).append(draft)
            by_file.setdefault(draft.source.file, []).append(draft)
    for task in drafts:
        if task.kind not in ("task", "dev-environment") or task.model is None:
            continue
        if task.broken.intersection(task_needs):
            continue
        names = cast(Run, task.partial).fleets
        if not names and task.kind == "task":
            names = tuple(name for group in task_of(task).groups for name in group.fleets)
        if names:
            fleets = tuple(fleet for name in dict.fromkeys(names) for fleet in by_name.get(name, ())[:_FEW])
            complete = all(name in by_name for name in names)
        else:
            fleets = tuple(by_file.get(task.source.file, ())[:_FEW])
            complete = True
        sound = all(
            fleet.model is not None and not fleet.broken.intersection(fleet_needs) for fleet in fleets
        )
        if fleets and complete and sound:
            yield task, fleets


TOGETHER = (
    names_differ,
    hosts_belong_to_one_fleet,
    dependencies_exist,
    dependencies_end,
    distributed_needs_cluster,
    gpus_fit_instances,
    run_fits_fleet,
)


def check_together(drafts: Sequence[Draft]) -> Iterable[Diagnostic]:
    """Findings of all rules for the documents of a load."""
    for rule in TOGETHER:
        yield from rule(drafts)
