"""`orch cp`: files and folders from and to runs and nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orch.cli import completion
from orch.cli.driver.opening import open_runner
from orch.cli.errors import UsageError, tell
from orch.cli.options import Rehearse
from orch.cli.output.ticking import still
from orch.cli.runs.containers import with_containers

if TYPE_CHECKING:
    from orch.runner.access.copying import Copied, Place, Side
    from orch.runner.ledger.records import RunRow
    from orch.runner.runs.lifecycle import RunnerContext
    from orch.spec.state import NodeState
    from orch.stacks.project.project import Project


def copy(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A path here, RUN:PATH, RUN/RANK:PATH or NODE:PATH.")
    ],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The same; one of the two is a path here.")],
    *,
    node: Annotated[
        int | None, typer.Option("--node", metavar="RANK", help="Of a run, only this rank.")
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", help="The name is a node of this fleet.", autocompletion=completion.fleets),
    ] = None,
    rehearse: Rehearse = False,
) -> None:
    """Copy files and folders from or to the containers of a run, or a node.

    Without a rank it is all ranks of the run; what comes from several goes to TARGET/RANK/. Of a run that has
    ended it is what `outputs` collected. A run's name comes before a node's.
    """
    from orch.runner.access.copying import parse_place

    there, here = parse_place(source), parse_place(target)
    if (there is None) == (here is None):
        raise UsageError(
            "both are paths of this machine" if there is None else "neither is a path of this machine",
            detail="one of the two has to be, the other one is of a run or a node",
            hint="`orch cp train:/out/model.pt .`; write ./a:b for a file here whose name has a colon",
        )
    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        place = there or here
        assert place is not None
        row = None if fleet is not None else _run_named(runner, place.name)
        if row is not None:
            _copy_run(runner, row, place, node, source=source, target=target, down=there is not None)
            return
        if place.rank is not None or node is not None:
            runner.ledger.get(place.name)  # raises UnknownRun, but for `--fleet`
            raise UsageError("a node has no ranks", hint="leave `--fleet` out to copy from or to a run")
        side = _node_side(project, runner, place, fleet)
        _copy_one(side, place, source, target, down=there is not None)


def _run_named(runner: RunnerContext, name: str) -> RunRow | None:
    from orch.runner.errors import UnknownRun
    from orch.runner.runs.lifecycle import reconcile_once

    try:
        row = runner.ledger.get(name)
    except UnknownRun:
        return None
    reconcile_once(runner, [row])
    return runner.ledger.by_id(row.id)


def _node_side(project: Project, runner: RunnerContext, place: Place, fleet: str | None) -> Side:
    from orch.cli.targets.nodes import nodes_named
    from orch.runner.access.copying import NodeSide
    from orch.runner.errors import UnknownRun
    from orch.spec.grammar.hosts import fold
    from orch.spec.grammar.values import shown
    from orch.spec.suggest import hint_for
    from orch.stacks.record.fleets import fleet_of, known_fleets
    from orch.stacks.stack.state import StackState

    up = {fleet: StackState(project, fleet)} if fleet is not None else known_fleets(project)
    fleets = {name: fleet_of(stack) for name, stack in up.items()}
    nodes = [node.name for state in fleets.values() for node in state.nodes]
    if fleet is None and place.name not in nodes and "[" not in place.name:
        runs = dict.fromkeys(row.name for row in runner.ledger.runs(limit=5))
        raise UnknownRun(
            f"neither a run nor a node of this project is named {shown(place.name)}",
            detail=f"latest runs: {', '.join(runs) or 'none'}; nodes: {fold(nodes) or 'none is up'}",
            hint=hint_for(place.name, (*runs, *nodes)) or "`orch ps -a` and `orch fleet` list them",
        )
    first, *others = nodes_named([place.name], fleets)
    if others:
        raise UsageError(
            f"{place.name!r} is {len(others) + 1} nodes, a copy is of one", hint=f"`{first.name}:PATH`"
        )
    return NodeSide(runner.connector, first)


def _copy_run(
    runner: RunnerContext,
    row: RunRow,
    place: Place,
    node: int | None,
    *,
    source: str,
    target: str,
    down: bool,
) -> None:
    from orch.runner.access.copying import PathMissing, RankSide, collected, copy_here
    from orch.runner.errors import RunConflict, UnknownRank
    from orch.runner.ledger.plans import plan_of
    from orch.runner.node_api.connector import fan_out
    from orch.runner.placement.slots import is_slot

    plan, context = plan_of(row), runner.context(row)
    ranks = [rank.rank for rank in row.ranks]
    wanted = place.rank if place.rank is not None else node
    if wanted is not None and wanted not in ranks:
        raise UnknownRank(f"run {row.name} has no rank {wanted}", hint=f"its ranks are 0 to {ranks[-1]}")
    if not place.path.startswith("/"):
        raise UsageError(f"{place.path!r} is not absolute", hint="a path in a container begins with /")
    chosen = ranks if wanted is None else [wanted]
    if not down and not row.active:
        raise RunConflict(f"run {row.name} has ended: nothing can be copied to it")
    if row.active:
        with_containers(runner, row)
    # What never had a pod has nothing that could be collected yet.
    uncollected = {
        rank.rank for rank in row.ranks if not rank.collected and not is_slot(plan.ranks[rank.rank].node)
    }

    def target_of(rank: int) -> Path:
        if len(chosen) == 1:
            return Path(target)
        folder = Path(target, str(rank))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                "the copies cannot be put there",
                where=str(folder),
                detail=error.strerror or str(error),
                hint="each rank's goes into a folder of its own: name a folder",
            ) from error
        return folder

    missing: list[PathMissing] = []
    for rank in chosen:
        if down and not row.active and rank not in uncollected:
            try:
                kept = collected(context, plan, rank, place.path)
            except PathMissing as error:  # other ranks may have it
                missing.append(error)
                continue
            _told(copy_here(kept, target_of(rank)), f"rank {rank}: ")
    rest = [rank for rank in chosen if row.active or (down and rank in uncollected)]
    rank_of = {plan.ranks[rank].node.name: rank for rank in rest}
    with _progress(down=down) as tell_of:

        def work(on: NodeState) -> Copied:
            rank = rank_of[on.name]
            side = RankSide(runner.connector, context.runtime(on), plan, rank)
            return _one(
                side, place, source, str(target_of(rank)) if down else target, tell_of(rank), down=down
            )

        results = fan_out([plan.ranks[rank].node for rank in rest], work)
    for result in results:
        if result.value is not None:
            _told(result.value, f"rank {rank_of[result.node.name]}: ")
    for result in results:
        if result.error is not None:
            raise result.error
    if missing:
        raise missing[0]


def _copy_one(side: Side, place: Place, source: str, target: str, *, down: bool) -> None:
    with _progress(down=down) as tell_of:
        done = _one(side, place, source, target, tell_of(0), down=down)
    _told(done, "")


def _one(
    side: Side, place: Place, source: str, target: str, tell_size: Callable[[int], None], *, down: bool
) -> Copied:
    from orch.runner.access.copying import fetch, push

    if down:
        if not Path(target).parent.is_dir():
            raise UsageError(f"there is no folder {Path(target).parent} here")
        return fetch(side, place.path, Path(target), tell_size)
    if not Path(source).exists():
        raise UsageError(f"there is no {source} here")
    return push(side, Path(source), place.path, tell_size)


@contextmanager
def _progress(*, down: bool) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """A line every ten seconds: how much has come or gone, of all that is copied at once."""
    from orch.runner.upload.selection import bytes_text

    sizes: dict[int, int] = {}
    lock = threading.Lock()

    def tell_of(key: int) -> Callable[[int], None]:
        def told(size: int) -> None:
            with lock:
                sizes[key] = size

        return told

    def status() -> str:
        with lock:
            return f"{bytes_text(sum(sizes.values()))} {'received' if down else 'sent'}"

    with still(status):
        yield tell_of


def _told(copied: Copied, head: str) -> None:
    from orch.runner.upload.selection import bytes_text

    files = f"{copied.files} file{'' if copied.files == 1 else 's'}"
    tell(f"{head}{files}, {bytes_text(copied.size)}: {copied.target}")
