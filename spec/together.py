"""What must hold between documents: one function per rule, all in one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from .diagnostics import Diagnostic, Related
from .draft import Draft
from .models import Fleet, Task
from .suggest import listed

Findings = Iterator[Diagnostic]


def _fleet(draft: Draft) -> Fleet:
    return cast(Fleet, draft.partial)


def _task(draft: Draft) -> Task:
    return cast(Task, draft.partial)


def names_differ(drafts: Sequence[Draft]) -> Findings:
    """Two documents of one type and name; unnamed runs get a name of their own each."""
    first: dict[tuple[str, str], Draft] = {}
    for draft in drafts:
        if draft.partial is None or "name" in draft.broken:
            continue
        if draft.kind == "project":
            name, what = draft.source.file, "this file holds a second document"
        else:
            name = getattr(draft.partial, "name", None)
            what = f"there is another {draft.kind} named '{name}'"
        if not name:
            continue
        other = first.setdefault((draft.kind, name), draft)
        if other is not draft:
            place = ("name",) if draft.written("name") else ()
            earlier = other.span(("name",) if other.written("name") else ())
            yield draft.diagnostic(
                "ORCH170",
                place,
                what,
                hint="keep one document" if draft.kind == "project" else "give each its own name",
                related=(Related(earlier, "the first one"),),
            )


def distributed_needs_cluster(drafts: Sequence[Draft]) -> Findings:
    for task, fleets in _runs_on(drafts, ("nodes",), ("placement",)):
        if _task(task).nodes < 2 or any(_fleet(fleet).placement == "cluster" for fleet in fleets):
            continue
        yield task.diagnostic(
            "ORCH241",
            ("nodes",),
            "distributed tasks need a fleet with `placement: cluster`",
            hint=f"add `placement: cluster` to {listed(_fleet(fleet).name for fleet in fleets)}",
            related=tuple(Related(fleet.heading(), f"fleet '{_fleet(fleet).name}'") for fleet in fleets),
        )


def run_fits_fleet(drafts: Sequence[Draft]) -> Findings:
    for task, fleets in _runs_on(drafts, ("nodes",), ("nodes",)):
        most = [nodes.max for fleet in fleets if (nodes := _fleet(fleet).nodes) is not None]
        if len(most) < len(fleets) or any(bound is None or bound >= _task(task).nodes for bound in most):
            continue
        largest = max(bound for bound in most if bound is not None)
        yield task.diagnostic(
            "ORCH244",
            ("nodes",),
            f"this task needs {_task(task).nodes} nodes, the fleet has at most {largest}",
            hint=f"write `nodes: {largest}`, or enlarge the fleet",
            related=tuple(
                Related(fleet.span(("nodes",)), f"fleet '{_fleet(fleet).name}'") for fleet in fleets
            ),
        )


_FEW = 20  # fleets of one file that a task without `fleets` is compared with


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
            by_name.setdefault(_fleet(draft).name, []).append(draft)
            by_file.setdefault(draft.source.file, []).append(draft)
    for task in drafts:
        if task.kind != "task" or task.model is None or task.broken.intersection(task_needs):
            continue
        named = _task(task).fleets
        if named:
            chosen = tuple(fleet for name in dict.fromkeys(named) for fleet in by_name.get(name, ()))
            complete = all(name in by_name for name in named)
        else:
            chosen = tuple(by_file.get(task.source.file, ())[:_FEW])
            complete = True
        sound = all(
            fleet.model is not None and not fleet.broken.intersection(fleet_needs) for fleet in chosen
        )
        if chosen and complete and sound:
            yield task, chosen


TOGETHER = (names_differ, distributed_needs_cluster, run_fits_fleet)


def check_together(drafts: Sequence[Draft]) -> Iterable[Diagnostic]:
    """Findings of all rules for the documents of a load."""
    for rule in TOGETHER:
        yield from rule(drafts)
