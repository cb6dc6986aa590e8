"""A hold of the whole state: who is refused, what is told, and who is waited for."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kit.clouds.cloud_engine import quiet
from kit.engine.remote_state import bucket

from orch.spec.errors import ExitCode
from orch.stacks.project.project import Project, find
from orch.stacks.project.roots import HOLD, MOVED
from orch.stacks.pulumi.leasing import release, take
from orch.stacks.pulumi.operation import EngineCall, engine, while_held
from orch.stacks.stack.command import init, plain, remove_tag, set_tag
from orch.stacks.stack.leases import FOR_GOOD_S, ROTATION, TAG, Leased, StackLease, refuse_leased
from orch.stacks.stack.lock_holders import LockMark
from orch.stacks.stack.state import StackState, stacks
from orch.stacks.states.holding import Hold, state_held
from orch.stacks.states.moving import move, plan_move
from orch.stacks.states.repair import Damage, repair

pytestmark = pytest.mark.usefixtures("engine")

OWNER = f"{ROTATION} by ada@laptop in /lab"
UP = ["up", "--yes", "--skip-preview", "--refresh=false"]
CHANGES: dict[str, Callable[[StackState], object]] = {
    "init": init,
    "up": lambda stack: engine(stack, UP, EngineCall(quiet, planning=True), lambda: None),
    "refresh": lambda stack: engine(stack, ["refresh", "--yes"], EngineCall(quiet, planning=True)),
    "destroy": lambda stack: engine(stack, ["destroy", "--yes"], EngineCall(quiet, planning=True)),
    "held work": lambda stack: while_held(stack, lambda _: None, quiet),
    "stack rm": lambda stack: plain(stack, ["stack", "rm", "--yes"]),
    "stack import": lambda stack: plain(stack, ["stack", "import"], stdin="{}"),
    "state edit": lambda stack: plain(stack, ["state", "unprotect", "--all", "--yes"]),
    "tag": lambda stack: set_tag(stack, "a", "b"),
    "no tag": lambda stack: remove_tag(stack, "a"),
    "repair": lambda stack: repair(stack, Damage("lab", ()), quiet),
}


def held(path: Path, owner: str = OWNER, seconds: int = 3600) -> Project:
    """A project whose state somebody holds."""
    project = find(path)
    file = project.checkpoint(HOLD)
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc)
    value = StackLease(owner, now, now + timedelta(seconds=seconds)).value
    file.with_name(f"{HOLD}.pulumi-tags").write_text(json.dumps({"version": 1, "tags": {TAG: value}}))
    return project


@pytest.mark.parametrize("change", CHANGES)
def test_while_somebody_holds_the_state_nobody_else_changes_or_creates_a_stack(
    tmp_path: Path, change: str
) -> None:
    project = held(tmp_path)
    project.prepare()
    with pytest.raises(Leased) as refused:
        CHANGES[change](StackState(project, "lab"))
    error = refused.value
    assert (error.code, error.exit_code) == ("ORCH389", ExitCode.CONFLICT)
    text = error.text()
    assert f"{OWNER} holds the state" in text
    assert f"since {datetime.now(timezone.utc):%Y-%m-%d}" in text
    assert "`orch rotate passphrase` continues it" in text
    assert stacks(project) == []


@pytest.mark.parametrize(
    ("owner", "seconds", "code", "told"),
    [
        (f"{MOVED}s3://a b", 3600, "ORCH389", "`orch state move --to 's3://a b'` continues it"),
        (f"{MOVED}s3://there", FOR_GOOD_S, "ORCH395", "write `state: s3://there` into it"),
    ],
)
def test_a_state_that_moves_is_told_from_one_that_has_moved(
    tmp_path: Path, owner: str, seconds: int, code: str, told: str
) -> None:
    with pytest.raises(Leased) as refused:
        refuse_leased(StackState(held(tmp_path, owner, seconds), "lab"))
    assert refused.value.code == code
    assert told in refused.value.text()


def test_who_holds_it_and_what_is_over_keeps_nobody_away(tmp_path: Path) -> None:
    refuse_leased(StackState(replace(held(tmp_path), owner=OWNER), "lab"))
    refuse_leased(StackState(held(tmp_path, seconds=-1), "lab"))


def test_who_holds_the_state_waits_for_calls_that_began_before(tmp_path: Path) -> None:
    project = find(tmp_path)
    project.prepare()
    child = subprocess.Popen(["sleep", "600"])
    mark = LockMark(project, "lab", UP).__enter__()
    mark.engine_started(child.pid)
    told: list[str] = []
    waits = threading.Event()

    def listener(event: object) -> None:
        told.append(str(getattr(event, "text", "")))
        if f"process {child.pid} " in told[-1]:
            waits.set()

    taken = threading.Thread(target=Hold(replace(project, owner=OWNER), listener).take)
    taken.start()
    assert waits.wait(120), told
    assert taken.is_alive()
    child.kill()
    child.wait()
    taken.join(120)
    assert not taken.is_alive()
    with pytest.raises(Leased):
        init(StackState(project, "lab"))


def test_a_move_waits_for_a_call_that_holds_a_stack(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    project = find(tmp_path / "clone")
    project.prepare()
    stack = StackState(project, "lab")
    init(stack)
    begun, waits = threading.Event(), threading.Event()

    def work(still_held: object) -> None:
        begun.set()
        assert waits.wait(120)

    def listener(event: object) -> None:
        if str(getattr(event, "text", "")).startswith("waiting for lab"):
            waits.set()

    at_work = threading.Thread(target=while_held, args=(stack, work, quiet))
    at_work.start()
    assert begun.wait(120)
    moved = move(plan_move(project, f"file://{tmp_path}/target", None), listener)
    at_work.join(120)
    assert waits.is_set()
    assert "lab" in stacks(moved)


def test_the_hold_ends_with_its_block_and_stays_after_a_kill(tmp_path: Path) -> None:
    project = find(tmp_path)
    project.prepare()
    own = replace(project, owner=OWNER)
    with state_held(own, quiet):
        init(StackState(own, "lab"))
        assert stacks(project) == ["lab"]
        with pytest.raises(Leased):
            set_tag(StackState(project, "lab"), "a", "b")
    set_tag(StackState(project, "lab"), "a", "b")
    with pytest.raises(KeyboardInterrupt), state_held(own, quiet):
        raise KeyboardInterrupt
    with pytest.raises(Leased):
        set_tag(StackState(project, "lab"), "a", "b")
    with state_held(own, quiet):
        pass
    set_tag(StackState(project, "lab"), "a", "b")


def test_a_hold_that_ran_out_is_not_taken_from_who_has_it_now(tmp_path: Path) -> None:
    project = find(tmp_path)
    project.prepare()

    def rotate() -> None:
        with state_held(replace(project, owner=OWNER), quiet) as hold:
            held(tmp_path, f"{ROTATION} by bob@desk in /lab")
            hold.take()

    with pytest.raises(Leased):
        rotate()
    with pytest.raises(Leased) as refused:
        refuse_leased(StackState(project, "lab"))
    assert "bob@desk" in refused.value.text()


def test_what_a_killed_move_has_leased_in_a_bucket_can_be_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PULUMI_CONFIG_PASSPHRASE"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with bucket() as url:
        (tmp_path / "orch.yml").write_text(f'project: lab\nstate: "{url}"\n')
        project = find(tmp_path)
        project.prepare()
        moves = StackState(replace(project, owner=f"{MOVED}s3://there"), "lab")
        init(moves)
        take(moves, moves.project.owner, FOR_GOOD_S, quiet)
        hold = Hold(moves.project, quiet)
        hold.take()
        stack = StackState(project, "lab")
        with pytest.raises(Leased, match="holds the state"):
            release(stack, project.owner, quiet, force=True)
        hold.release()  # its hour is over
        assert release(stack, project.owner, quiet, force=True) is not None
        set_tag(StackState(project, "lab"), "a", "b")
