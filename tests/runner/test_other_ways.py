"""Nodes that are reached without SSH, where a job is no container: runs know neither."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.nodes.foldernodes import FolderLab, FolderRuntime, folder_of, targets

from orch.cli.output.run import run_json, summary
from orch.runner.access.copying import PathMissing, collected, copy_here
from orch.runner.connect import open_connector
from orch.runner.errors import RunnerError
from orch.runner.events import FilesProgress, LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.plans import plan_of
from orch.runner.ledger.records import RunRow
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.node.status import node_statuses
from orch.runner.node_api.cordon import mark
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.runner.runs.outputs import OutputsLeft, outputs_left
from orch.runner.runs.read_logs import Selection, read_logs
from orch.spec.models import Task
from orch.spec.state import NodeState


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[FolderLab]:
    (tmp_path / "boxes").mkdir()
    lab = FolderLab(tmp_path / "boxes")
    yield lab
    lab.end()


@pytest.fixture
def place(tmp_path: Path, boxes: FolderLab, ledger_url: str) -> Iterator[RunnerContext]:
    ledger = open_ledger(ledger_url)
    runtimes = {**RUNTIMES, "folder": FolderRuntime()}
    yield RunnerContext(tmp_path / ".orch", ledger, boxes.connector, Recorder(), runtimes)
    ledger.close()


@pytest.fixture
def run(place: RunnerContext, boxes: FolderLab, tmp_path: Path) -> Callable[..., RunRow]:
    def run(**task: object) -> RunRow:
        given = Task.model_validate({"name": "job", "nodes": 2, **task})
        row = lifecycle.submit(place, Submission(given, boxes.fleet(), image="none", base=tmp_path))
        return lifecycle.drive(place, row)

    return run


def lines(place: RunnerContext, rank: int) -> list[str]:
    assert isinstance(place.processor, Recorder)
    told = [event for event in place.processor.events if isinstance(event, LogLine)]
    return [line.text for line in told if line.rank == rank]


def left(boxes: FolderLab) -> list[str]:
    """What runs have left on the nodes."""
    return [str(path) for name in ("runs", "claims") for path in boxes.path.glob(f"*/{name}/*")]


def test_a_task_runs_on_two_nodes_that_are_folders_of_this_machine(
    run: Callable[..., RunRow], place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    (tmp_path / "given.txt").write_text("a file of the task\n")
    # Both nodes are this machine: each unpacks both files, also while the other reads its own.
    file = f"{tmp_path}/target-$NODE_RANK/given.txt"
    row = run(
        commands=[
            'echo "rank $NODE_RANK of $NNODES, the first is at $MASTER_ADDR, $SECRET"',
            f"until grep -x 'a file of the task' {file} 2>/dev/null; do sleep 0.1; done",
        ],
        files=[f"given.txt:{target}" for target in targets(tmp_path, "given.txt")],
        env={"SECRET": "it's here"},
        shell="sh",
    )
    assert (row.status, row.reason) == ("done", "all_jobs_done"), lines(place, 0)
    for rank in (0, 1):
        told = f"rank {rank} of 2, the first is at 127.0.0.1, it's here"
        assert lines(place, rank) == [told, "a file of the task"]
    assert left(boxes) == []


def test_a_failing_rank_ends_the_others_there_too(
    run: Callable[..., RunRow], place: RunnerContext, boxes: FolderLab
) -> None:
    row = run(commands=["[ $ORCH_NODE_RANK = 0 ] || exit 3", "sleep 600"], shell="sh", stop_duration=5)
    assert row.message == "rank 1 on node box-1 exited with code 3"
    assert [(rank.status, rank.reason) for rank in row.ranks] == [
        ("terminated", "sibling_failed"),
        ("failed", "container_exited_with_error"),
    ]
    assert left(boxes) == []


def test_logs_statuses_and_cordons_come_from_such_nodes(
    place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    fleet = boxes.fleet()
    task = Task.model_validate(
        {"name": "job", "nodes": 2, "commands": ["echo here", "sleep 600"], "shell": "sh"}
    )
    row = lifecycle.submit(place, Submission(task, fleet, image="none", base=tmp_path))

    def statuses() -> list[str]:
        return [each.status for each in node_statuses(fleet, boxes.connector, runtimes=place.runtimes)]

    assert statuses() == ["idle", "idle"]
    lease = place.ledger.take(row.id, "somebody")
    assert lease is not None
    # As far as a driver comes before it dies; the next one goes on by what the ledger kept of the nodes.
    from orch.runner.runs.driver import Driver

    driver = Driver(place.context(row), row, lease, follow_logs=False)
    while place.ledger.by_id(row.id).status != "running":
        driver.step()
        driver._reload()
    place.ledger.release(lease)
    assert statuses() == ["busy", "busy"]
    assert '"kind":"folder"' in row.plan.replace(" ", "")
    heard = Recorder()
    reader = RunnerContext(place.dot, place.ledger, boxes.connector, heard, place.runtimes)
    read_logs(reader, place.ledger.by_id(row.id), Selection((0, 1)))
    assert sorted(event.text for event in heard.events if isinstance(event, LogLine)) == ["here", "here"]
    ended = lifecycle.stop(place, place.ledger.by_id(row.id), abort=True)
    assert ended.reason == "aborted_by_user"
    mark(fleet.nodes[:1], boxes.connector, "fan", deadline_s=5.0)
    assert statuses() == ["cordoned", "idle"]
    folder_of(fleet.nodes[1]).rename(tmp_path / "away")
    assert statuses() == ["cordoned", "unreachable"]


def test_a_kind_and_a_runtime_that_this_orch_does_not_have_are_named(boxes: FolderLab) -> None:
    node = boxes.node(0)
    with pytest.raises(RunnerError) as caught:
        open_connector().address(node)
    assert "'folder'" in (caught.value.detail or "")
    (status,) = node_statuses(boxes.fleet().model_copy(update={"nodes": (node,)}), boxes.connector)
    assert status.status == "failure"
    assert "nobody here starts jobs on node box-0" in (status.reason or "")


def test_runs_load_nothing_of_ssh() -> None:
    code = (
        "import json, sys, orch.runner.runs.lifecycle, orch.runner.runs.read_logs, orch.runner.hosts.survey;"
        "ours = ('orch.runner.ssh', 'paramiko', 'fabric');"
        "print(json.dumps([name for name in sys.modules if name.startswith(ours)]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == []


def test_a_node_over_ssh_is_recorded_as_before_there_were_kinds() -> None:
    recorded = {
        "index": 0,
        "name": "gpu1",
        "address": "10.0.0.9",
        "port": 2200,
        "user": "ada",
        "identity": "keys/a",
        "host_key": "ssh-ed25519 AAAA",
        "jump": [{"address": "gate", "port": 22, "user": "me", "identity": None, "host_key": None}],
        "proxy_command": None,
        "ssh_alias": "gpu1",
        "internal_ip": None,
    }
    node = NodeState.model_validate(recorded)
    assert node.ssh.jump[0].address == "gate"
    written = node.model_dump(mode="json")
    assert {key: written[key] for key in recorded if key != "jump"} == {
        key: value for key, value in recorded.items() if key != "jump"
    }
    assert not {"access", "kind", "runtime"} & set(written)
    assert NodeState.model_validate(written) == node


def test_no_address_and_no_host_key_is_known_outside_the_ssh_connector() -> None:
    root = Path(__file__).parents[2]
    files = [
        *(
            file
            for file in root.glob("runner/**/*.py")
            if not str(file.relative_to(root)).startswith(("runner/ssh", "runner/fabfile"))
        ),
        *root.glob("cli/**/*.py"),
        *root.glob("stacks/**/*.py"),
    ]
    assert len(files) > 100
    ssh = re.compile(r"\.ssh\.\w|\.(host_key|known_hosts|proxy_command)\b")
    lines = {file: re.sub(r"from orch\..*", "", file.read_text()) for file in files}
    assert [str(file) for file, text in lines.items() if ssh.search(text)] == []


def test_outputs_are_collected_from_every_rank_also_when_the_run_fails(
    run: Callable[..., RunRow], place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    out = tmp_path / "made"
    row = run(
        commands=[
            f"mkdir -p {out}/$NODE_RANK/deep && cd {out}/$NODE_RANK && printf 'a\\000b' > deep/model.bin",
            "ln -s deep/model.bin near; ln -s /etc/passwd away; mkfifo pipe; echo log > log.txt",
            # The first that fails ends the other.
            f"until [ -s {out}/0/log.txt ] && [ -s {out}/1/log.txt ]; do sleep 0.1; done",
            "exit 3",
        ],
        outputs=[
            f"{out}/0",
            {"path": f"{out}/1/log.txt", "to": "results"},
            "/no/such/thing",
            {"path": f"{out}/1", "to": "folders"},
        ],
        shell="sh",
    )
    assert row.status == "failed"
    outputs = tmp_path / ".orch" / "runs" / "job" / "outputs"
    for rank in ("0", "1"):  # both nodes are this machine
        kept = outputs / rank / str(out).lstrip("/") / "0"
        assert (kept / "deep" / "model.bin").read_bytes() == b"a\0b"
        assert (kept / "near").read_bytes() == b"a\0b"
        assert not (kept / "away").is_symlink()
        assert not (kept / "pipe").exists()
        assert (tmp_path / "results" / rank / "log.txt").read_text() == "log\n"
    assert isinstance(place.processor, Recorder)
    told = [event.text for event in place.processor.events if isinstance(event, Notice)]
    (text,) = (text for text in told if f"rank 1: collected {out}/0, 2 files, 7 bytes" in text)
    assert text.endswith("; left out: 1 link to somewhere out of it, 1 special file (pipes, devices)")
    assert "rank 0: there is no /no/such/thing, nothing is collected of it" in told
    kept = outputs_left(place.ledger, row)
    assert kept.on_nodes == ()
    partly = [each for each in told if "left out" in each or "there is no" in each]
    assert (sorted(kept.left_out), len(partly)) == (sorted(partly), 6)
    assert left(boxes) == []

    # `orch cp` gives them by their paths in the container, under the names that they have there.
    context, plan = place.context(row), plan_of(row)
    (tmp_path / "copies").mkdir()

    def copied(path: str) -> str:
        done = copy_here(collected(context, plan, 0, path), tmp_path / "copies")
        return str(Path(done.target).relative_to(tmp_path / "copies"))

    paths = ("0", "1/", "1/./deep", "1/deep/model.bin", "1/log.txt")
    names = ["0", "1", "deep", "model.bin", "log.txt"]
    assert [copied(f"{out}/{path}") for path in paths] == names
    assert (tmp_path / "copies" / "1" / "deep" / "model.bin").read_bytes() == b"a\0b"
    for path, why in (("/etc/x", "not collected"), (f"{out}/1/x", "there is no"), (f"{out}/1/../..", "not")):
        with pytest.raises(PathMissing, match=why):
            copied(path)


def test_a_rank_keeps_its_job_until_its_outputs_are_here(
    run: Callable[..., RunRow], place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("a file, where a folder has to be")
    made = tmp_path / "made"
    row = run(
        nodes=1,
        commands=[f"mkdir {made} && echo x > {made}/x"],
        outputs=[{"path": str(made), "to": "taken"}],
        shell="sh",
    )
    assert row.status == "done"
    assert not row.ranks[0].collected
    assert len(left(boxes)) == 2
    lifecycle.reconcile_once(place)
    ((rank, node, why),) = outputs_left(place.ledger, row).on_nodes
    assert (rank, node) == (0, "box-0")
    assert run_json(row, left=outputs_left(place.ledger, row))["outputs_on_nodes"][0]["why"] == why
    assert why.startswith(f"{tmp_path / 'taken'}: Not a directory; make room there, then `orch ps`")
    assert [kind for _, kind, _ in place.ledger.events(row.id)].count("not_kept 0.0") == 1
    (tmp_path / "taken").unlink()
    lifecycle.reconcile_once(place)
    assert outputs_left(place.ledger, place.ledger.by_id(row.id)) == OutputsLeft()
    assert (tmp_path / "taken" / "x").read_text() == "x\n"
    assert left(boxes) == []


def test_a_repository_and_files_are_sent_once_and_then_what_changed(
    run: Callable[..., RunRow], place: RunnerContext, boxes: FolderLab, tmp_path: Path
) -> None:
    def sent() -> list[int]:
        assert isinstance(place.processor, Recorder)
        told = [event.total_bytes for event in place.processor.events if isinstance(event, FilesProgress)]
        place.processor.events.clear()
        return sorted(set(told))

    code, target = tmp_path / "code", tmp_path / "target"
    code.mkdir()
    (code / "big").write_bytes(b"x" * 3_000_000)
    (code / "train.py").write_text("one")
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"),
    ):
        subprocess.run(["git", *words], cwd=code, check=True)
    task: dict[str, object] = {
        "nodes": 1,
        "repos": [f"code:{target}"],
        "files": [f"code/big:{tmp_path}/alone"],
        "commands": ["cd $DSTACK_REPO_DIR && cat train.py && git status --porcelain && cat ../alone | wc -c"],
        "shell": "sh",
    }
    for text, least, most in (("one", 6_000_000, 7_000_000), ("two", 500, 20_000), ("two", 0, 0)):
        (code / "train.py").write_text(text)
        shutil.rmtree(target, ignore_errors=True)
        row = run(**task)
        assert row.status == "done", lines(place, 0)
        changed = ["two M train.py"] if text == "two" else ["one"]
        assert lines(place, 0) == [*changed, "3000000"] if text == "two" else True
        sizes = sent()
        assert (not sizes) if not most else (least < sizes[-1] < most), sizes
    row = run(**task)  # the folder is not empty now
    assert (row.status, row.ranks[0].exit_code) == ("failed", 125)
    assert f"orch: {target} is not empty" in lines(place, 0)[0]


def test_the_rank_that_failed_first_is_told_although_another_one_ended_first(
    run: Callable[..., RunRow], boxes: FolderLab, tmp_path: Path
) -> None:
    gate, reset = tmp_path / "gate", "echo 'RuntimeError: Connection closed by peer'"
    row = run(
        commands=[
            f"[ $NODE_RANK = 1 ] || {{ until [ -e {gate} ]; do sleep 0.05; done; {reset}; exit 1; }}",
            "echo 'Traceback (most recent call last):'; echo '  File \"train.py\", line 3'",
            f"echo 'ValueError: bad batch'; touch {gate}; exec sleep 600",
        ],
        shell="sh",
        stop_duration=5,
    )
    assert row.message == "rank 1 on node box-1 failed: ValueError: bad batch"
    assert [(rank.status, rank.reason) for rank in row.ranks] == [
        ("failed", "container_exited_with_error"),
        ("failed", "container_exited_with_error"),
    ]
    assert row.first_failed == row.ranks[1]
    assert "  its log: orch logs job --rank 1" in summary(row)
    assert left(boxes) == []
