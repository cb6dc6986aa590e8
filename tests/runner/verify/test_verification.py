"""A verification as a run: its task, what its ranks printed, and what that is held against."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.ledgers.pureruns import compiled, fleet, node

from orch.runner.errors import RunFailed
from orch.runner.events import LogLine, LogLines, Notice, Recorder
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.verify.job import bisection
from orch.runner.verify.verification import (
    FILES,
    PROGRAM,
    RUNS,
    SHARED_SLOW,
    Quietly,
    Request,
    conditions_of,
    results_of,
    task_of,
    terms_of,
)
from orch.spec.errors import ExitCode
from orch.spec.state import FleetHealth, FleetState

GPUS = {"count": 8, "vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559}


def h100(nodes: int, **more: object) -> FleetState:
    machines = [node(number, gpus=GPUS, instance_type="p5.48xlarge") for number in range(nodes)]
    return fleet(*machines, **{"backend": "aws", "interconnect": "efa", **more})


@dataclass(frozen=True)
class Rank:
    rank: int


@dataclass(frozen=True)
class Row:
    """What is asked of a run's row."""

    status: str
    plan: str = ""
    fleet: str = "lab"
    name: str = "job"
    id: int = 1
    message: str | None = None
    ranks: tuple[Rank, ...] = (Rank(0), Rank(1))


def row(of: FleetState, status: str = "done") -> Row:
    plan = compiled(of, **written(Request(), of)).plan
    return Row(status, plan.model_dump_json())


def written(request: Request, of: FleetState) -> dict[str, object]:
    """A task without the files that are on this machine alone."""
    task = task_of(request, of)
    return {"nodes": task.nodes, "torchrun": {"program": FILES[0], "args": list(task.torchrun.args)}}  # pyright: ignore


def test_a_verification_has_all_nodes_and_a_process_for_each_accelerator() -> None:
    of = h100(2)
    task = task_of(Request(pairs=True, size=1 << 30), of)
    assert (task.nodes, task.fleets, task.max_duration_s) == (2, ("lab",), 7200)
    assert [each.local_path for each in task.files] == list(FILES)
    assert all((PROGRAM / each).is_file() for each in FILES)
    plan = compiled(of, **written(Request(pairs=True, size=1 << 30), of)).plan
    for number, rank in enumerate(plan.ranks):
        assert f"--nproc_per_node=8 \\\n  --node_rank={number} " in rank.script
        words = f"--lines --runs {','.join(RUNS)} --pairs --slow {bisection.SLOW} --size 1073741824"
        assert rank.script.rstrip().endswith(f"verify_program.py {words}\n}}")


def test_a_verification_of_one_node_takes_all_of_it() -> None:
    of = h100(1).model_copy(update={"nodes": (node(0, gpus=GPUS, blocks=8),)})
    task = task_of(Request(), of)
    assert task.resources.gpu.count.min == 8
    assert "--pairs" not in task_of(Request(), h100(2)).torchrun.args  # pyright: ignore


def test_nodes_of_one_machine_have_a_limit_of_their_own() -> None:
    of = fleet(node(0), node(1))
    assert f"{SHARED_SLOW}" in task_of(Request(pairs=True), of).torchrun.args  # pyright: ignore
    terms = terms_of(Request(), of, row(of), {})  # pyright: ignore
    assert (terms.one_machine, terms.slow, terms.transports) == (True, SHARED_SLOW, ("socket",))


def test_the_interconnect_and_the_bandwidth_that_the_file_asks_for_are_those_of_the_fleet() -> None:
    of = h100(2)
    terms = terms_of(Request(), of, row(of), {})  # pyright: ignore
    assert (terms.interconnect, terms.transports, terms.min_busbw) == ("efa", ("efa",), None)
    assert [(each.name, each.instance_type, each.gpus) for each in terms.nodes] == [
        ("n0", "p5.48xlarge", 8),
        ("n1", "p5.48xlarge", 8),
    ]
    asked = of.model_copy(update={"health": FleetHealth(min_busbw=300)})
    terms = terms_of(Request(), asked, row(of), {})  # pyright: ignore
    assert (terms.min_busbw, terms.min_busbw_by) == (300.0, "what `health.min_busbw` of the fleet asks for")
    terms = terms_of(Request(min_busbw=350.5), asked, row(of), {})  # pyright: ignore
    assert (terms.min_busbw, terms.min_busbw_by) == (350.5, "what --min-busbw asks for")


def test_accelerators_that_pytorch_drives_in_another_way_are_not_expected_to_be_seen() -> None:
    of = h100(2).model_copy(
        update={"nodes": tuple(node(at, gpus={**GPUS, "vendor": "tenstorrent"}) for at in (0, 1))}
    )
    assert [each.gpus for each in terms_of(Request(), of, row(of), {}).nodes] == [0, 0]  # pyright: ignore


def log(folder: RunFolder, rank: int, *texts: str) -> None:
    folder.log(rank).parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"2026-11-26T22:00:00.000000Z {text}\n" for text in texts)
    folder.log(rank).write_text(lines)


def said(**fields: object) -> str:
    return f"orch-verify: {json.dumps({'v': 1, **fields})}"


START = {
    "kind": "start",
    "backend": "nccl",
    "library": "NCCL 2.27.3",
    "torch": "2.9",
    "ranks": 16,
    "nodes": 2,
}


def test_results_are_read_from_the_log_of_rank_0(tmp_path: Path) -> None:
    folder, of = RunFolder(tmp_path, 1), h100(2)
    log(folder, 0, "WARNING: torchrun", said(**START), said(kind="end", seconds=3.0), "the last line")
    found = results_of(folder, row(of), Request(runs=()))  # pyright: ignore
    assert (found.seconds, found.unread) == (3.0, 0)
    terms = terms_of(Request(), of, row(of), {})  # pyright: ignore
    assert conditions_of(found, terms) == "2 nodes, 16 ranks, NCCL, efa"


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_without_results_says_why_its_ranks_ended(tmp_path: Path, ended: bool) -> None:
    folder = RunFolder(tmp_path, 1)
    log(folder, 0, said(**START), *([said(kind="end", seconds=3.0)] if ended else []))
    warning = "NET/OFI OFI fi_getinfo() call failed: No data available"
    log(
        folder,
        1,
        said(kind="error", rank=9, text="DistBackendError: x\x1b[2J", network="gIB", warnings=[warning]),
    )
    with pytest.raises(RunFailed) as caught:
        results_of(folder, Row("failed"), Request())  # pyright: ignore
    error = caught.value
    assert (error.code, error.exit_code) == ("ORCH446", ExitCode.RUN_FAILED)
    assert error.detail == f"rank 9: DistBackendError: x<1b>[2J\n{warning}\nnetwork: gIB"
    assert error.hint == "`orch logs job` has what its ranks wrote"


def test_a_run_whose_log_is_not_here_has_no_results(tmp_path: Path) -> None:
    failed = Row("failed", message="the node went")
    with pytest.raises(RunFailed) as caught:
        results_of(RunFolder(tmp_path, 1), failed, Request())  # pyright: ignore
    assert caught.value.detail == "the node went"


def test_what_was_asked_for_and_is_not_told_is_not_fine(tmp_path: Path) -> None:
    folder, of = RunFolder(tmp_path, 1), h100(2)
    skipped = {"kind": "skipped", "why": "there is one process"}
    figure = {"kind": "figure", "unit": "MB/s", "node": 0, "value": 9.0}
    told = [
        said(**skipped, measure="all_reduce"),
        said(**figure, measure="disk_write"),
        "orch-verify: {",
        said(kind="collective", measure="alltoall", size=-1, seconds=0, algbw=1, busbw="x", wrong=0),
    ]
    log(folder, 0, said(**START), *told, said(kind="end", seconds=3.0))
    wanted = Request(runs=("all_reduce", "disk"))
    assert results_of(folder, row(of), wanted).unread == 2  # pyright: ignore
    wanted = Request(runs=("all_reduce", "alltoall", "gemm", "disk"), pairs=True)
    with pytest.raises(RunFailed) as caught:
        results_of(folder, row(of), wanted)  # pyright: ignore
    assert caught.value.detail == "nothing is told of alltoall, gemm, pairs"


def test_results_are_for_programs_and_all_else_is_shown() -> None:
    shown = Recorder()
    quietly = Quietly(shown)
    stored = "".join(f"2026-11-26T22:00:00Z {text}\n" for text in ("a warning", said(**START)))
    quietly.handle(LogLines(0, "n0", stored))
    quietly.handle(LogLine(0, "n0", "2026-11-26T22:00:00Z", said(kind="end", seconds=1.0)))
    quietly.handle(Notice("starting"))
    assert [each.text for each in shown.events if isinstance(each, LogLine | Notice)] == [
        "a warning",
        "starting",
    ]


@pytest.mark.parametrize("name", FILES)
def test_what_goes_to_the_nodes_needs_python_3_9_the_standard_library_and_pytorch(name: str) -> None:
    tree = ast.parse((PROGRAM / name).read_text("utf-8"), feature_version=(3, 9))
    for each in ast.walk(tree):
        assert not isinstance(each, ast.Match)
        if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
            each.body = []
    files = {Path(file).stem for file in FILES}
    for each in ast.walk(tree):
        names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
        names += [each.module or ""] if isinstance(each, ast.ImportFrom) else []
        for imported in names:
            root = imported.partition(".")[0]
            assert root in {*sys.stdlib_module_names, *files, "torch"}, imported
    # `X | Y` of types and `zip(strict=)` fail there when they are reached.
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            assert "strict" not in [word.arg for word in each.keywords]
