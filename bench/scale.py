"""Deciding about a fleet and its runs at 256, 1,024 and 4,096 nodes: how each step grows with the nodes.

No node exists: nodes are records, and a connector and a runtime answer at once as if all were well. The
ledger is a real one, on SQLite. The last figure of a line compares the CPU time at a size with four times
that of the size before, which shows what grows faster than the number of nodes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.measure import ROOT

if TYPE_CHECKING:
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RunPlan
    from orch.runner.runs.context import RunnerContext
    from orch.spec.models import Task
    from orch.spec.state import FleetState

SIZES = (256, 1024, 4096)
ROUNDS, LONG_S = 3, 3.0
GPUS = {"count": 8, "name": "H100", "memory_mib": 81920, "vendor": "nvidia"}


class Spent(NamedTuple):
    """Seconds that a step took, and those of them that this process computed."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Growth:
    """The times of one step by number of nodes."""

    step: str
    times: tuple[Spent, ...]

    def __str__(self) -> str:
        times = ", ".join(f"{size:,} nodes {t.wall:.3f} s" for size, t in zip(SIZES, self.times, strict=True))
        worst = max(
            large.cpu / (4 * small.cpu) for small, large in zip(self.times[:-1], self.times[1:], strict=True)
        )
        return f"{self.step}: {times}; at most {worst:.2f} times of linear"


def figures() -> Iterator[Growth]:
    sys.path.insert(0, str(ROOT / "tests"))
    with tempfile.TemporaryDirectory() as name:
        labs = [Lab(size, Path(name) / str(size)) for size in SIZES]
        for step, work in STEPS.items():
            yield Growth(step, tuple(_best(work, lab) for lab in labs))


def _best(work: Callable[[Lab], Spent], lab: Lab) -> Spent:
    """Return the least times of some rounds; of a step that takes long, of one."""
    times = [work(lab)]
    while len(times) < ROUNDS and sum(each.wall for each in times) < LONG_S:
        times.append(work(lab))
    return Spent(min(each.wall for each in times), min(each.cpu for each in times))


class Lab:
    """A project with one fleet of so many nodes, and what steps need of it."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size, self._folder, self._number = size, folder, 0

    @cached_property
    def fleet(self) -> FleetState:
        from kit.ledgers.pureruns import fleet, node

        return fleet(
            *(
                node(at, internal_ip=f"10.{at >> 16}.{at >> 8 & 255}.{at & 255}", gpus=GPUS, price_hourly=1.0)
                for at in range(self.size)
            )
        )

    def task(self, nodes: int) -> Task:
        from orch.spec.models import Task

        return Task.model_validate({"torchrun": {"program": "train.py"}, "slurm_env": True, "nodes": nodes})

    @contextmanager
    def runner(self) -> Iterator[RunnerContext]:
        """A runner with a ledger of its own."""
        from orch.runner.ledger.ledger import open_ledger
        from orch.runner.runs.context import RunnerContext

        self._number += 1
        dot = self._folder / str(self._number) / ".orch"
        dot.mkdir(parents=True)
        ledger = open_ledger(f"sqlite:///{dot / 'ledger.db'}")
        try:
            yield RunnerContext(dot, ledger, _Connector(), runtimes={"docker": _Runtime()})  # type: ignore[arg-type]
        finally:
            ledger.close()

    def submit(self, runner: RunnerContext) -> RunRow:
        """Submit a run on all nodes."""
        from orch.runner.launch.submission import Submission
        from orch.runner.runs.submit import submit

        return submit(runner, Submission(self.task(self.size), self.fleet, "image", runner.dot.parent))

    @cached_property
    def plan(self) -> RunPlan:
        from orch.runner.launch.compile import compile_run
        from orch.runner.launch.run_request import RunRequest
        from orch.runner.placement.placement import place_task

        task = self.task(self.size)
        seats = place_task(task, self.fleet)
        return compile_run(RunRequest(task, "job", 1, self.fleet, seats, "image", Path("/base"))).plan

    @cached_property
    def large(self) -> RunnerContext:
        """A runner whose one run has all nodes, and runs."""
        from orch.runner.runs.lifecycle import advance

        self._open = self.runner()
        runner = self._open.__enter__()
        advance(runner, self.submit(runner), begin=True)
        return runner

    @cached_property
    def many(self) -> RunnerContext:
        """A runner with a run of one node for each node."""
        from orch.runner.launch.compile import compile_run
        from orch.runner.launch.run_request import RunRequest
        from orch.runner.placement.node_fit import Seat
        from orch.runner.plan.run_names import RunName

        self._open_many = self.runner()
        runner = self._open_many.__enter__()
        first = self.fleet.nodes[0]
        seats = (Seat(first, first.blocks),)
        request = RunRequest(self.task(1), "job-0", 1, self.fleet, seats, "image", Path("/base"))
        plan = compile_run(request).plan

        def text_of(name: str, number: int, at: int) -> str:
            rank = plan.ranks[0].model_copy(update={"node": self.fleet.nodes[at]})
            return plan.model_copy(update={"run": name, "number": number, "ranks": (rank,)}).model_dump_json()

        for at, node in enumerate(self.fleet.nodes):
            name = RunName.parse(f"job-{at}")
            runner.ledger.create(
                name, self.fleet.name, [node.name], lambda number, n=name, at=at: text_of(n, number, at)
            )
        return runner


class _Connector:
    """Every command succeeds at once and says nothing: a node is idle and healthy."""

    def run(self, node: Any, command: Any, **_: Any) -> Any:
        from orch.runner.node_api.connector import Completed

        return Completed(node.name, command, 0, "", "", 0.0)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"no step does {name} to a node")


class _Runtime:
    """Every rank starts at once, and then runs."""

    def __init__(self) -> None:
        self._started: set[int] = set()

    def start(self, connector: Any, plan: Any, rank: int, archive: Any, *, begin: bool) -> Any:
        from orch.runner.node.runtime import StartedRank

        self._started.add(rank)
        sum(map(len, archive))
        return StartedRank(rank, 29500 if rank == 0 else None, (0,))

    def observe(self, connector: Any, plan: Any, rank: int, **_: Any) -> Any:
        from orch.runner.node.runtime import ObservedRank

        return ObservedRank(rank, "running", marks=frozenset({"go", "started"}))

    def lift_barrier(self, *_: Any) -> None: ...

    def health_check(self) -> str:
        return ":"

    def read_log(self, *_: Any, **__: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"no step asks a runtime for {name}")


# Steps


def _timed(work: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - wall, time.process_time() - cpu)


def _place(lab: Lab) -> Spent:
    from orch.runner.placement.placement import place_task

    task, fleet = lab.task(lab.size), lab.fleet
    return _timed(lambda: place_task(task, fleet))


def _compile(lab: Lab) -> Spent:
    lab.__dict__.pop("plan", None)
    _ = lab.fleet
    return _timed(lambda: lab.plan)


def _submit(lab: Lab) -> Spent:
    _ = lab.fleet
    with lab.runner() as runner:
        return _timed(lambda: lab.submit(runner))


def _submit_one(lab: Lab) -> Spent:
    from orch.runner.launch.submission import Submission
    from orch.runner.runs.submit import submit

    runner, task = lab.many, lab.task(1)
    return _timed(lambda: submit(runner, Submission(task, lab.fleet, "image", runner.dot.parent), wait=True))


def _start(lab: Lab) -> Spent:
    from orch.runner.runs.lifecycle import advance

    with lab.runner() as runner:
        row = lab.submit(runner)
        return _timed(lambda: advance(runner, row, begin=True))


def _drive(lab: Lab) -> Spent:
    from orch.runner.runs.lifecycle import advance

    runner = lab.large
    (row,) = runner.ledger.runs(active_only=True)
    assert row.status == "running", row.status
    return _timed(lambda: advance(runner, row, begin=False))


def _decide(lab: Lab) -> Spent:
    from orch.runner.node.runtime import ObservedRank
    from orch.runner.runs.decide import Phase, RunView, Stop, decide

    plan, last = lab.plan, lab.size - 1
    ranks = [ObservedRank(at, "running", marks=frozenset({"started"})) for at in range(last)]
    ranks.append(ObservedRank(last, "exited", exit_code=1, marks=frozenset({"started"})))
    view = RunView("run", Phase.RUNNING)

    def work() -> None:
        assert isinstance(decide(plan, view, ranks), Stop)

    return _timed(work)


def _reconcile(lab: Lab) -> Spent:
    from orch.runner.runs.lifecycle import reconcile_once

    return _timed(lambda: reconcile_once(lab.many))


def _ps(runner: RunnerContext) -> Spent:
    from contextlib import redirect_stdout
    from io import StringIO

    from orch.cli.runs import ps

    def work() -> None:
        shown = ps._look(runner, ps.Wanted(False, (), (), ()))
        ps._table(shown, wide=True)
        with redirect_stdout(StringIO()):
            ps._print_json(shown)

    return _timed(work)


def _show_run(lab: Lab) -> Spent:
    from orch.cli import show
    from orch.cli.output.run import run_json

    runner = lab.large
    (row,) = runner.ledger.runs(active_only=True)
    return _timed(lambda: (show._run_text(runner, row), run_json(row), show._plan_facts(row)))


def _show_fleet(lab: Lab) -> Spent:
    from orch.cli.output.fleet import FleetRow, fleet_json, fleet_table
    from orch.runner.node.status import node_statuses

    fleet = lab.fleet

    def work() -> None:
        row = FleetRow(fleet, node_statuses(fleet, _Connector()))  # type: ignore[arg-type]
        fleet_table([row], verbose=True, colour=False)
        fleet_json(row)

    return _timed(work)


def _metrics(lab: Lab) -> Spent:
    from prometheus_client import CollectorRegistry, generate_latest

    from orch.runner.metrics import node_look
    from orch.runner.metrics.families import ProjectCollector
    from orch.runner.metrics.project_look import NodeAnswer, ProjectFacts, ProjectLook

    runs, fleet = lab.large.ledger.runs(active_only=True), lab.fleet

    def work() -> None:
        nodes = tuple(NodeAnswer(fleet, node, node_look.read(fleet, node, "")) for node in fleet.nodes)
        look = ProjectLook(ProjectFacts((fleet,), runs), nodes, 1.0)
        registry = CollectorRegistry()
        registry.register(ProjectCollector(lambda: look))
        generate_latest(registry)

    return _timed(work)


def _plan_fleet(lab: Lab) -> Spent:
    from kit.clouds.aws_cases import Case

    document = {"name": "p5", "nodes": lab.size, "placement": "cluster", "resources": {"gpu": "H100:8"}}
    case = Case("scale", {"fleet": {**document, "availability_zones": ["us-east-1a"]}})
    return _timed(case.outcome)


def _review(lab: Lab) -> Spent:
    from kit.forges import dangers

    from orch.review.assess import fleet_review
    from orch.review.html import html
    from orch.review.markdown import markdown

    changes = [dangers.node("create", at) for at in range(lab.size)]
    after, model = dangers.compiled(lab.size), dangers.fleet(nodes=lab.size)

    def work() -> None:
        made = dangers.plan(changes, after, 0)
        review = dangers.review(fleet_review(dangers.subject(made, model, after, 0)))
        markdown(review)
        html(review)

    return _timed(work)


STEPS: dict[str, Callable[[Lab], Spent]] = {
    "place_task": _place,
    "place_task and compile_run": _compile,
    "submit, a run of all nodes": _submit,
    "submit, a run of one node beside one for each node": _submit_one,
    "start of a run of all nodes": _start,
    "one look of a driver at a run of all nodes": _drive,
    "decision about a run of all nodes": _decide,
    "reconcile, a run for each node": _reconcile,
    "ps, a run of all nodes": lambda lab: _ps(lab.large),
    "ps, a run for each node": lambda lab: _ps(lab.many),
    "show, a run of all nodes": _show_run,
    "show, the fleet": _show_fleet,
    "metrics": _metrics,
    "plan of a fleet": _plan_fleet,
    "review of a fleet": _review,
}
