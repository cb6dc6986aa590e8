"""What must hold between properties and between documents: one small function per rule, all in two tables.

A rule names the properties it needs; when one of them is already wrong, the rule keeps silent. Rules look
at nothing outside the files. A rule returns its findings and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from .diagnostics import Diagnostic, Related, Severity, Span
from .draft import Draft
from .models import Fleet, Project, Task

AnyModel = Fleet | Task | Project
Findings = Iterator[Diagnostic]


@dataclass(frozen=True)
class Rule:
    """A check of one document. `needs` are the top-level properties it reads."""

    needs: tuple[str, ...]
    check: Callable[[Draft], Findings]


def _fleet(draft: Draft) -> Fleet:
    return cast(Fleet, draft.partial)


def _task(draft: Draft) -> Task:
    return cast(Task, draft.partial)


# Fleets


def fleet_has_nodes(draft: Draft) -> Findings:
    if _fleet(draft).nodes is None:
        yield draft.diagnostic(
            "ORCH141",
            (),
            "a fleet needs `nodes` (provisioned) or `ssh_config` (existing hosts)",
            hint="add `nodes: 2`",
        )


def backends_have_drivers(draft: Draft) -> Findings:
    """Foreign and future backends warn while `local` is left, and are one error when none is."""
    backends = _fleet(draft).backends
    if "local" not in backends:
        first = backends[0] if backends else "an empty list"
        yield draft.diagnostic(
            "ORCH201",
            ("backends",),
            f"this version provisions local nodes only, it has no driver for {first}"
            if backends
            else "no backend is listed",
            hint="write `backend: local`",
        )
        return
    for index, name in enumerate(backends):
        if name != "local":
            yield draft.diagnostic(
                "ORCH190",
                ("backends", index),
                f"orch has no driver for {name} in this version; using local",
                severity=Severity.WARNING,
            )


def idleness_of_local_nodes(draft: Draft) -> Findings:
    if draft.written("idle_duration") and "local" in _fleet(draft).backends:
        yield draft.diagnostic(
            "ORCH196",
            ("idle_duration",),
            "local nodes are not terminated when idle",
            key=True,
            severity=Severity.WARNING,
            hint="remove them with `orch down` when they are not needed",
        )


def disk_of_local_nodes(draft: Draft) -> Findings:
    fleet = _fleet(draft)
    if "disk_mib" in fleet.resources.model_fields_set and "local" in fleet.backends:
        yield draft.diagnostic(
            "ORCH196",
            ("resources", "disk"),
            "local nodes share the disk of this machine, `disk` sets no limit",
            key=True,
            severity=Severity.WARNING,
        )


def nodes_are_bounded(draft: Draft) -> Findings:
    nodes = _fleet(draft).nodes
    if nodes is None:
        return
    if nodes.max is None:
        yield draft.diagnostic(
            "ORCH192",
            ("nodes",),
            "this fleet has no upper bound",
            severity=Severity.WARNING,
            hint=f"write `{nodes.min}..{max(nodes.target, 1) * 4}`, or another maximum",
        )
    elif nodes.max > nodes.target and nodes.target == 0:
        yield draft.diagnostic(
            "ORCH197",
            ("nodes",),
            "this creates no node: nodes on demand are not supported by this version",
            severity=Severity.WARNING,
            hint=f"write `nodes: {nodes.max}`, or a target",
        )
    elif nodes.max > nodes.target:
        yield draft.diagnostic(
            "ORCH197",
            ("nodes",),
            f"{nodes.target} nodes are created; more on demand are not supported by this version",
            severity=Severity.WARNING,
            hint="set the target to what you need",
        )


def blocks_divide_gpus(draft: Draft) -> Findings:
    fleet = _fleet(draft)
    count = fleet.resources.gpu.count
    if not isinstance(fleet.blocks, int) or count.min != count.max or not count.min:
        return
    gpus = int(count.min)
    if gpus % fleet.blocks:
        possible = ", ".join(str(n) for n in range(1, gpus + 1) if gpus % n == 0)
        yield draft.diagnostic(
            "ORCH147",
            ("blocks",),
            f"{gpus} GPUs do not split into {fleet.blocks} blocks",
            hint=f"possible: {possible}",
            related=(Related(draft.span(("resources", "gpu")), "the GPUs of a node"),),
        )


# Tasks


def one_launcher(draft: Draft) -> Findings:
    if _task(draft).torchrun and _task(draft).mpirun:
        first, second = sorted((draft.span((name,), key=True), name) for name in ("torchrun", "mpirun"))
        yield draft.diagnostic(
            "ORCH150",
            (second[1],),
            "a task has one launcher, `torchrun` or `mpirun`",
            key=True,
            hint="remove one of them",
            related=(Related(first[0], f"`{first[1]}` is set here"),),
        )


def something_to_run(draft: Draft) -> Findings:
    task = _task(draft)
    if not (task.commands or task.torchrun or task.mpirun or task.image):
        yield draft.diagnostic(
            "ORCH154",
            (),
            "this task has nothing to run",
            hint="add `commands`, `torchrun`, `mpirun`, or an `image` that runs by itself",
        )


def torchrun_has_program(draft: Draft) -> Findings:
    torchrun = _task(draft).torchrun
    if torchrun is None:
        return
    if torchrun.program is None and torchrun.module is None:
        yield draft.diagnostic(
            "ORCH155",
            ("torchrun",),
            "`torchrun` needs `program` or `module`",
            key=True,
            hint="add `program: train.py`",
        )
    elif torchrun.program is not None and torchrun.module is not None:
        yield draft.diagnostic(
            "ORCH155",
            ("torchrun", "module"),
            "`torchrun` starts either a `program` or a `module`",
            key=True,
            hint="remove one of them",
            related=(Related(draft.span(("torchrun", "program"), key=True), "`program` is set here"),),
        )


def elastic_fits(draft: Draft) -> Findings:
    task = _task(draft)
    if task.torchrun is None or task.torchrun.nnodes is None:
        return
    most = task.torchrun.nnodes[1]
    if most > task.nodes:
        yield draft.diagnostic(
            "ORCH156",
            ("torchrun", "nnodes"),
            f"this range goes up to {most} nodes, the run has {task.nodes}",
            hint=f"write at most {task.nodes}, or `nodes: {most}`",
            related=(Related(draft.span(("nodes",)), "nodes of the run"),) if draft.written("nodes") else (),
        )


def mounts_differ(draft: Draft) -> Findings:
    first: dict[str, int] = {}
    for index, volume in enumerate(_task(draft).volumes):
        if volume.path in first:
            other = draft.span(("volumes", first[volume.path]))
            yield draft.diagnostic(
                "ORCH153",
                ("volumes", index),
                f"{volume.path} is mounted twice",
                hint="give each volume its own path",
                related=(Related(other, "mounted here first"),),
            )
        first.setdefault(volume.path, index)


def mpirun_decides(draft: Draft) -> Findings:
    task = _task(draft)
    if task.mpirun is None:
        return
    for name, value, wanted in (
        ("startup_order", task.startup_order, "workers-first"),
        ("stop_criteria", task.stop_criteria, "master-done"),
    ):
        if draft.written(name) and value != wanted:
            yield draft.diagnostic(
                "ORCH198",
                (name,),
                f"with `mpirun` this is always `{wanted}`",
                severity=Severity.WARNING,
                hint="remove the line",
            )


def reserved_variables(draft: Draft) -> Findings:
    model = draft.partial
    env = model.env if isinstance(model, Fleet | Task) else {}
    for name in env:
        if name.startswith(("DSTACK_", "ORCH_")):
            yield draft.diagnostic(
                "ORCH193",
                _env_path(draft, name),
                f"{name} is set by orch, this value is not used",
                severity=Severity.WARNING,
                hint="choose another name",
            )


def fleet_variables_have_values(draft: Draft) -> Findings:
    for name, value in _fleet(draft).env.items():
        if value is None:
            yield draft.diagnostic(
                "ORCH118",
                _env_path(draft, name),
                "a variable without a value is not supported in a fleet by this version",
                hint=f"write `{name}=${{{{ env.{name} }}}}`, or put it into the `env` of the task",
            )


FLEET_RULES = (
    Rule(("nodes", "ssh_config"), fleet_has_nodes),
    Rule(("backends",), backends_have_drivers),
    Rule(("backends", "idle_duration"), idleness_of_local_nodes),
    Rule(("backends", "resources"), disk_of_local_nodes),
    Rule(("nodes",), nodes_are_bounded),
    Rule(("blocks", "resources"), blocks_divide_gpus),
    Rule(("env",), reserved_variables),
    Rule(("env",), fleet_variables_have_values),
)
TASK_RULES = (
    Rule(("torchrun", "mpirun"), one_launcher),
    Rule(("commands", "torchrun", "mpirun", "image", "groups", "entrypoint"), something_to_run),
    Rule(("torchrun",), torchrun_has_program),
    Rule(("torchrun", "nodes"), elastic_fits),
    Rule(("volumes",), mounts_differ),
    Rule(("mpirun", "startup_order", "stop_criteria"), mpirun_decides),
    Rule(("env",), reserved_variables),
)
RULES: Mapping[str, tuple[Rule, ...]] = {"fleet": FLEET_RULES, "task": TASK_RULES, "project": ()}


def check_document(draft: Draft) -> Iterable[Diagnostic]:
    """Findings of all rules for one document."""
    if draft.partial is None:
        return
    for rule in RULES[draft.kind]:
        if not draft.broken.intersection(rule.needs):
            yield from rule.check(draft)


# The environment


def resolve_env(
    env: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    where: Draft | None = None,
    severity: Severity = Severity.ERROR,
) -> tuple[dict[str, str], tuple[Diagnostic, ...]]:
    """The variables with their values, and an ORCH173 for each that is taken from `environ` and is not set
    there.

    Unset variables are left out of the result. `where` is the document they stand in.
    """
    values: dict[str, str] = {}
    unset: list[Diagnostic] = []
    for name, value in env.items():
        given = environ.get(name) if value is None else value
        if given is not None:
            values[name] = given
            continue
        summary, hint = f"environment variable {name} is not set", f"export it or use `--env {name}=…`"
        if where is None:
            unset.append(
                Diagnostic("ORCH173", Span("--env", 1, 1, 1, 1), summary, severity=severity, hint=hint)
            )
        else:
            path = _env_path(where, name)
            unset.append(where.diagnostic("ORCH173", path, summary, severity=severity, hint=hint))
    return values, tuple(unset)


def _env_path(draft: Draft, name: str) -> tuple[str | int, ...]:
    """Where a variable stands: under its key, or in its item of the list."""
    for index, text in draft.texts(("env",)):
        if text == name or text.startswith(f"{name}="):
            return ("env", index)
    return ("env", name)
