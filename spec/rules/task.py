"""Rules between the properties of a task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from orch.spec.diagnostics import Related, Severity
from orch.spec.document.draft import Draft, Path_, scalars
from orch.spec.grammar import interpolate
from orch.spec.grammar.interpolate import ReferenceSite
from orch.spec.grammar.values import Problem
from orch.spec.models import Task
from orch.spec.rules import run
from orch.spec.rules.rule import Findings, Rule
from orch.spec.suggest import listed


def task_of(draft: Draft) -> Task:
    return cast(Task, draft.partial)


def one_launcher(draft: Draft) -> Findings:
    if task_of(draft).torchrun and task_of(draft).mpirun:
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
    task = task_of(draft)
    if not (task.commands or task.torchrun or task.mpirun or task.image or task.groups):
        yield draft.diagnostic(
            "ORCH154",
            (),
            "this task has nothing to run",
            hint="add `commands`, `torchrun`, `mpirun`, or an `image` that runs by itself",
        )


def groups_stand_alone(draft: Draft) -> Findings:
    """Groups say what the whole task would otherwise say."""
    if not task_of(draft).groups:
        return
    related = (Related(draft.span(("groups",), key=True), "the groups"),)
    for name in ("nodes", "commands", "ports", "entrypoint", "torchrun", "mpirun"):
        if draft.written(name):
            hint = "write it in each group" if name in ("nodes", "commands", "ports") else f"remove `{name}`"
            summary = f"`{name}` and `groups` exclude each other"
            yield draft.diagnostic("ORCH160", (name,), summary, key=True, hint=hint, related=related)


def groups_have_something_to_run(draft: Draft) -> Findings:
    task = task_of(draft)
    for index, group in enumerate(task.groups):
        if not group.commands and task.image is None:
            yield draft.diagnostic(
                "ORCH154", ("groups", index), "this group has nothing to run", hint="add `commands`"
            )


def groups_have_names_of_their_own(draft: Draft) -> Findings:
    """A group without a name has its number for one."""
    first: dict[str, int] = {}
    for index, group in enumerate(task_of(draft).groups):
        name = group.name or str(index)
        other = first.setdefault(name, index)
        if other != index:
            yield draft.diagnostic(
                "ORCH165",
                ("groups", index, "name"),
                f"there is another group named '{name}'",
                hint="give each its own name",
                related=(Related(draft.span(("groups", other, "name")), "the first one"),),
            )


def groups_share_a_fleet(draft: Draft) -> Findings:
    """The nodes of one run reach each other by the addresses of one fleet's network."""
    task = task_of(draft)
    names, before = set(task.fleets), ("fleets",) if task.fleets else ()
    for index, group in enumerate(task.groups):
        common = names & set(group.fleets) if names and group.fleets else names or set(group.fleets)
        if names and not common:
            yield draft.diagnostic(
                "ORCH166",
                ("groups", index, "fleets"),
                "no fleet may run this group and those before it",
                detail="all groups of a run go to one fleet: its nodes reach each other",
                hint="name a fleet that they have in common, or write tasks of their own",
                related=(Related(draft.span(before), f"these may run on {listed(sorted(names))}"),),
            )
            return
        names, before = common, ("groups", index, "fleets") if group.fleets else before


def groups_have_their_own_resources(draft: Draft) -> Findings:
    if task_of(draft).groups and draft.written("resources"):
        yield draft.diagnostic(
            "ORCH160",
            ("resources",),
            "groups do not take these over: each has `resources` of its own",
            key=True,
            severity=Severity.WARNING,
            hint="write it in each group that needs it",
            related=(Related(draft.span(("groups",), key=True), "the groups"),),
        )


def group_addresses_exist(draft: Draft) -> Findings:
    """`${{ groups[i].nodes[j].IP_ADDRESS }}` within the groups of the task."""
    groups = task_of(draft).groups
    for path, scalar in scalars(draft.node):
        if "groups[" not in scalar.text or path[0] != "groups":
            continue
        in_command = len(path) > 2 and path[2] == "commands"
        site = ReferenceSite.COMMAND if in_command else ReferenceSite.TEXT
        try:
            references = interpolate.references(scalar.text, site)
            addresses = [each for each in references if each.namespace.startswith("groups[")]
            for reference in addresses:
                interpolate.check(reference, site, ("groups",))
        except Problem:
            continue  # told when it was read
        for reference in addresses:
            group, node = interpolate.group_address(reference)
            if group >= len(groups):
                what = f"there is no group {group}, the last one is {len(groups) - 1}"
            elif node >= groups[group].nodes:
                what = f"group {group} has no node {node}, its last one is {groups[group].nodes - 1}"
            else:
                continue
            yield draft.diagnostic("ORCH136", path, what, hint="groups and nodes count from 0")


def torchrun_has_program(draft: Draft) -> Findings:
    torchrun = task_of(draft).torchrun
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


def program_is_sent(draft: Draft) -> Findings:
    """A script by a relative path is in the container only where something puts it there."""
    task = task_of(draft)
    program = (task.torchrun.program if task.torchrun is not None else None) or ""
    if not program.endswith(".py") or program.startswith(("/", "~", "$")):
        return
    if task.files or task.repos or task.volumes or task.commands or task.working_dir or task.image:
        return
    yield draft.diagnostic(
        "ORCH167",
        ("torchrun", "program") if draft.node_at(("torchrun", "program")) is not None else ("torchrun",),
        f"nothing brings {program} into the container",
        severity=Severity.WARNING,
        hint=f"add `files: [{program}]` or `repos: [.]`, or name an `image` that holds it",
    )


def elastic_fits(draft: Draft) -> Findings:
    task = task_of(draft)
    host = task.torchrun.rdzv.host if task.torchrun is not None else None
    if host is not None and host >= task.nodes:
        yield draft.diagnostic(
            "ORCH119",
            ("torchrun", "rdzv", "host"),
            f"the run has no rank {host}, its last node is rank {task.nodes - 1}",
            hint="write `0`, or remove the line",
        )
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


def mpirun_decides(draft: Draft) -> Findings:
    task = task_of(draft)
    if task.mpirun is None:
        return
    for name, value, required in (
        ("startup_order", task.startup_order, "workers-first"),
        ("stop_criteria", task.stop_criteria, "master-done"),
    ):
        if draft.written(name) and value != required:
            yield draft.diagnostic(
                "ORCH198",
                (name,),
                f"with `mpirun` this is always `{required}`",
                severity=Severity.WARNING,
                hint="remove the line",
            )


# -- what commands hold that works in a Slurm job and not in a container -----------------------------------

_ALONE = "write the program alone, started on each node; `ntasks_per_node`, `torchrun` or `mpirun` start more"
_OUTSIDE = "ask from outside the job: `orch ps`, `orch stop`, `orch fleet`"
_HINTS = {
    "srun": _ALONE,
    "module": "choose an `image` that holds what the modules would load",
    "#SBATCH": "write it as properties: `nodes`, `resources`, `max_duration`, …",
    "scontrol": "`scontrol show hostnames` is all that is there",
    "sbatch": "write a task of its own, started with `orch run`",
    "salloc": "write a task of its own, started with `orch run`",
    **dict.fromkeys(("squeue", "scancel", "sinfo", "sacct"), _OUTSIDE),
}
_SUMMARIES = {
    "module": "environment modules belong to the hosts of a cluster: most images have no `module`",
    "#SBATCH": "`#SBATCH` lines are comments here",
    "scontrol": "no Slurm is in the job's container: this `scontrol` does not work",
}
# Where a shell begins a command: a line, what joins or opens commands, words that take one, assignments.
_COMMAND = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else|exec|time)\s)[ \t]*(?:[A-Za-z_]\w{0,99}=\S{0,200}[ \t]+)*"
    r"(?:(?P<word>srun|sbatch|salloc|squeue|scancel|sinfo|sacct)(?=\s|$)"
    r"|(?P<module>module)[ \t]+(?:load|add|use|purge|swap|unload|restore)\b"
    r"|(?P<scontrol>scontrol)(?=\s|$)(?![ \t]+show[ \t]+hostnames?\b)"
    r"|(?P<header>\#SBATCH)\b)",
    re.MULTILINE,
)


def commands_of_slurm(draft: Draft) -> Findings:
    """Each of its words once for each command that holds it."""
    task = cast(Task, draft.partial)
    places: list[Path_] = [("commands",)]
    places += [("groups", index, "commands") for index in range(len(task.groups))]
    for place in places:
        for index, text in draft.texts(place):
            for word in dict.fromkeys(_words(text)):
                summary = _SUMMARIES.get(word, f"no Slurm is in the job's container: `{word}` is not found")
                yield draft.diagnostic(
                    "ORCH164", (*place, index), summary, severity=Severity.WARNING, hint=_HINTS[word]
                )


_INDEX = re.compile(r"\$(?:(?P<bare>\w{1,40})|\{(?P<braced>\w{1,40})\})")
_INDEX_NAMES = ("SLURM_ARRAY_TASK_ID", "ORCH_ARRAY_TASK_ID")


def index_without_array(draft: Draft) -> Findings:
    """An index that the shell would find empty: no `array`, no `env` and no default gives it."""
    task = task_of(draft)
    if task.array is not None:
        return
    texts = [(("commands", index), text, task.env) for index, text in draft.texts(("commands",))]
    for number, group in enumerate(task.groups):
        place = ("groups", number, "commands")
        given = {**task.env, **group.env}
        texts += [((*place, index), text, given) for index, text in draft.texts(place)]
    whole = "\n".join(text for _, text, _ in texts)
    for path, text, given in texts:
        used = [found["bare"] or found["braced"] for found in _INDEX.finditer(text)]
        for name in _INDEX_NAMES:
            if name in used and name not in given and f"{name}=" not in whole:
                summary = f"`{name}` is set only in the runs of an array"
                hint = "write `array: 1-10` beside it"
                yield draft.diagnostic("ORCH133", path, summary, severity=Severity.WARNING, hint=hint)


def _words(text: str) -> Iterator[str]:
    for found in _COMMAND.finditer(text):
        yield next(word for word in found.groups() if word)


RULES = (
    *run.RULES,
    Rule(("torchrun", "mpirun"), one_launcher),
    Rule(("commands", "torchrun", "mpirun", "image", "groups", "entrypoint"), something_to_run),
    Rule(("groups", "nodes", "commands", "ports", "entrypoint", "torchrun", "mpirun"), groups_stand_alone),
    Rule(("groups", "image"), groups_have_something_to_run),
    Rule(("groups",), groups_have_names_of_their_own),
    Rule(("groups", "fleets"), groups_share_a_fleet),
    Rule(("groups", "resources"), groups_have_their_own_resources),
    Rule(("groups",), group_addresses_exist),
    Rule(("commands", "groups"), commands_of_slurm),
    Rule(("commands", "groups", "array", "env"), index_without_array),
    Rule(("torchrun",), torchrun_has_program),
    Rule(("torchrun", "files", "repos", "volumes", "commands", "working_dir", "image"), program_is_sent),
    Rule(("torchrun", "nodes"), elastic_fits),
    Rule(("mpirun", "startup_order", "stop_criteria"), mpirun_decides),
)
