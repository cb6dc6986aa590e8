"""The ledger: one driver per run, nothing lost with a process, and clear words when it cannot be used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from kit.ledgers import ledger_taker
from kit.ledgers.postgres import Postgres
from kit.support import fork_server, until
from sqlalchemy import event, insert, select, text

from orch.runner.errors import LedgerReadOnly, LedgerUnusable, NewerLedger, RunConflict, UnknownRun
from orch.runner.ledger import database, schema
from orch.runner.ledger import lease as leases
from orch.runner.ledger import ledger as module
from orch.runner.ledger.history import metric_samples
from orch.runner.ledger.history.node_lives import Look, PresentNode
from orch.runner.ledger.lease import LeaseLost
from orch.runner.ledger.ledger import LOST_WEIGHT, Ledger, open_ledger
from orch.runner.ledger.records import Waiting
from orch.runner.processes import here, process_owner
from orch.spec.errors import ExitCode


def new(ledger: Ledger, name: str = "job", nodes: int = 2) -> int:
    return ledger.create(
        name, "lab", [f"n{i}" for i in range(nodes)], lambda number: f'{{"number": {number}}}'
    ).id


@pytest.fixture
def any_ledger(ledger_url: str) -> Iterator[Ledger]:
    ledger = open_ledger(ledger_url)
    yield ledger
    ledger.close()


def test_a_run_is_read_back_as_it_was_written(any_ledger: Ledger):
    number = new(any_ledger)
    began = time.time()
    row = any_ledger.get("job")
    assert row.plan == f'{{"number": {number}}}'
    assert (row.id, row.status, row.desired, row.phase, row.held) == (
        number,
        "submitted",
        "run",
        "submitted",
        False,
    )
    assert [(rank.rank, rank.node, rank.status, rank.collected) for rank in row.ranks] == [
        (0, "n0", "submitted", False),
        (1, "n1", "submitted", False),
    ]
    assert began - 5 < row.now < time.time() + 5


def test_one_active_run_per_name_and_any_number_of_ended_ones(any_ledger: Ledger):
    first = new(any_ledger)
    with pytest.raises(RunConflict, match="a run named job is active"):
        new(any_ledger)
    lease = any_ledger.take(first, "me")
    assert lease is not None
    any_ledger.finish(lease, "done", "all_jobs_done", None)
    second = new(any_ledger)
    assert any_ledger.get("job").id == second
    # The id of a run stands for its name, also of one whose name another one has now.
    assert any_ledger.get(str(first)).id == first
    assert [any_ledger.argument(number) for number in (first, second)] == [str(first), "job"]
    with pytest.raises(UnknownRun, match="no run named '987654321'"):
        any_ledger.get("987654321")
    with pytest.raises(UnknownRun):
        any_ledger.get("9" * 40)
    assert [row.id for row in any_ledger.runs()] == [second, first]
    assert [row.id for row in any_ledger.runs(active_only=True)] == [second]


def test_many_runs_are_read_in_parts(any_ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    numbers = [new(any_ledger, f"job-{index}", nodes=index + 1) for index in range(5)]
    for number, ends in ((numbers[0], True), (numbers[1], False)):
        lease = any_ledger.take(number, "me")
        assert lease is not None
        any_ledger.finish(lease, "failed", "job_failed", None) if ends else any_ledger.wait(
            lease, Waiting("w", 1.0, None, 1), ["error"]
        )
        any_ledger.release(lease)
    every = [any_ledger.by_id(number) for number in reversed(numbers)]
    assert [replace(row, now=0.0) for row in any_ledger.runs()] == [replace(row, now=0.0) for row in every]
    assert [len(row.ranks) for row in every] == [5, 4, 3, 2, 1]
    assert [len(row.attempts) for row in every] == [0, 0, 0, 1, 0]
    assert [row.id for row in any_ledger.runs(active_only=True)] == numbers[:0:-1]
    assert [row.id for row in any_ledger.runs(limit=3)] == numbers[:1:-1]
    assert [row.id for row in any_ledger.placed_on("lab")] == numbers[:1:-1]
    assert any_ledger.placed_on("other") == ()
    assert any_ledger.ended_of({*numbers, 10**6}) == {("job-0", numbers[0])}


def test_runs_are_chosen_before_a_list_is_cut_and_active_ones_are_always_in_it(any_ledger: Ledger):
    active = new(any_ledger, "early")
    ended: list[int] = []
    for index in range(5):
        ended.insert(0, new(any_ledger, f"job-{index}"))
        lease = any_ledger.take(ended[0], "me")
        assert lease is not None
        any_ledger.finish(lease, "failed" if index == 0 else "done", "all_jobs_done", None)
    everything = any_ledger.listed(ended=True, limit=2)
    assert [row.id for row in everything.rows] == [*ended[:2], active]
    assert everything.left_out == 3
    assert [row.id for row in any_ledger.listed(ended=False).rows] == [active]
    of_status = any_ledger.listed(ended=True, statuses=["failed"], limit=2)
    assert ([row.id for row in of_status.rows], of_status.left_out) == ([ended[-1]], 0)
    assert [row.id for row in any_ledger.listed(ended=True, statuses=["submitted"]).rows] == [active]
    user, at, _ = here().partition("@")
    for owners, found in (([here()], 6), (["eve", user], 6), ([f"{user}{at}"], 0), ([here() + "@c"], 0)):
        assert len(any_ledger.listed(ended=True, owners=owners).rows) == found, owners
    assert any_ledger.listed(ended=True, fleets=["other", "\udcff"]).rows == ()


def test_a_plan_that_cannot_be_made_leaves_no_run(any_ledger: Ledger):
    def fail(_number: int) -> str:
        raise ValueError("no plan")

    with pytest.raises(ValueError, match="no plan"):
        any_ledger.create("job", "lab", ["n0"], fail)
    assert any_ledger.runs() == ()


def test_a_lease_has_one_holder_and_every_take_raises_the_fence(any_ledger: Ledger):
    number = new(any_ledger)
    first = any_ledger.take(number, "a")
    assert first is not None
    assert any_ledger.take(number, "b") is None
    assert any_ledger.by_id(number).held
    again = any_ledger.take(number, "a")
    assert again is not None
    assert again.fence == first.fence + 1
    any_ledger.release(again)
    assert any_ledger.take(number, "b") is not None


def test_whoever_lost_the_lease_cannot_write(any_ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    number = new(any_ledger)
    monkeypatch.setattr(leases, "LEASE_S", -1.0)
    stale = any_ledger.take(number, "a")
    assert stale is not None
    monkeypatch.undo()
    fresh = any_ledger.take(number, "b")
    assert fresh is not None
    for write in (
        lambda: any_ledger.renew(stale),
        lambda: any_ledger.change(stale, "x", "y", phase="going"),
        lambda: any_ledger.mark_started(stale, "x"),
        lambda: any_ledger.change_rank(stale, 0, 0, status="running"),
        lambda: any_ledger.finish(stale, "done", "all_jobs_done", None),
        lambda: any_ledger.wait(stale, Waiting("w", 1.0, None, 1), ["error"]),
        lambda: any_ledger.begin_attempt(stale, 1, "{}", ["n0"]),
    ):
        with pytest.raises(LeaseLost):
            write()
    any_ledger.release(stale)
    assert any_ledger.by_id(number).owner == "b"
    any_ledger.change_rank(fresh, 0, 1, status="running", exit_code=None)
    assert any_ledger.by_id(number).ranks[1].status == "running"


def test_the_lease_of_a_dead_process_of_this_machine_is_free_at_once(any_ledger: Ledger):
    number = new(any_ledger)
    dead = subprocess.run(
        [
            sys.executable,
            "-c",
            "from orch.runner.processes import here, process_owner; print(process_owner())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert any_ledger.take(number, dead) is not None
    assert not any_ledger.by_id(number).held
    assert any_ledger.take(number, process_owner()) is not None
    assert any_ledger.by_id(number).held


def test_a_wish_to_abort_is_not_softened(any_ledger: Ledger):
    number = new(any_ledger)
    any_ledger.set_desired(number, "abort")
    any_ledger.set_desired(number, "stop")
    assert any_ledger.by_id(number).desired == "abort"
    assert [kind for _, kind, _ in any_ledger.events(number)] == ["submitted", "desired", "desired"]


def test_ended_runs_with_something_left_on_a_node_are_found(any_ledger: Ledger):
    number = new(any_ledger)
    lease = any_ledger.take(number, "a")
    assert lease is not None
    any_ledger.change_rank(lease, 0, 0, collected=1)
    any_ledger.finish(lease, "failed", "job_failed", "x")
    assert [row.id for row in any_ledger.uncollected()] == [number]
    any_ledger.change_rank(lease, 0, 1, collected=1)
    assert any_ledger.uncollected() == ()


def test_nodes_that_never_come_back_keep_nobody_from_older_runs(any_ledger: Ledger):
    numbers: list[int] = []
    for index in range(36):
        numbers.append(new(any_ledger, f"job-{index}", nodes=1))
        lease = any_ledger.take(numbers[-1], "a")
        assert lease is not None
        any_ledger.finish(lease, "failed", "job_failed", "x")
    seen: set[int] = set()
    for _ in range(100):
        found = {row.id for row in any_ledger.uncollected()}
        assert len(found) == 30
        assert found >= set(numbers[16:])
        seen |= found
    assert seen == set(numbers)


def test_many_processes_take_each_run_once(ledger_url: str, tmp_path: Path):
    ledger = open_ledger(ledger_url)
    count = 40
    for index in range(count):
        new(ledger, f"job{index}", 1)
    code = Path(ledger_taker.__file__).read_text()

    def take(owner: str) -> tuple[int, str, str]:
        return fork_server().call(["take", ledger_url, owner], tmp_path, os.environ, code=code)

    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(take, ("w0", "w1", "w2")))
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    taken = [int(number) for _, out, _ in ended for number in out.split()]
    assert sorted(taken) == sorted({row.id for row in ledger.runs()})
    assert len(taken) == count
    assert all(row.status == "done" for row in ledger.runs())
    ledger.close()


def test_a_new_ledger_that_many_open_at_once_is_made_once(ledger_url: str):
    opened: list[Ledger] = []
    openers = [threading.Thread(target=lambda: opened.append(open_ledger(ledger_url))) for _ in range(8)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(60)
    assert [each.runs() for each in opened] == [()] * 8
    for each in opened:
        each.close()


@pytest.fixture
def shared(postgres: Postgres) -> Iterator[tuple[Ledger, Ledger]]:
    """The same ledger on PostgreSQL, twice."""
    with postgres.database() as url:
        ledgers = open_ledger(url), open_ledger(url)
        yield ledgers
        for each in ledgers:
            each.close()


def test_a_run_is_read_as_it_was_at_one_moment(shared: tuple[Ledger, Ledger]):
    ledger, beside = shared
    number = new(ledger)
    lease = ledger.take(number, "me")
    assert lease is not None
    ledger.wait(lease, Waiting("why", 0.0, None, 1))
    moved: list[str] = []

    @event.listens_for(beside._engine, "after_cursor_execute")
    def _change(*_: object) -> None:
        if not moved:
            moved.append("begun")
            ledger.begin_attempt(lease, 0, "{}", ["n5"])

    row = beside.by_id(number)
    assert (moved, row.status) == (["begun"], "pending")
    assert [rank.node for rank in row.ranks] == ["n0", "n1"]
    row = beside.by_id(number)
    assert (row.status, [rank.node for rank in row.ranks]) == ("submitted", ["n5"])


def test_a_rank_is_not_written_by_whoever_loses_the_lease_at_that_moment(shared: tuple[Ledger, Ledger]):
    ledger, beside = shared
    number = new(ledger)
    stale = ledger.take(number, "a")
    assert stale is not None
    lost: list[str] = []

    def write() -> None:
        try:
            ledger.change_rank(stale, 0, 0, status="running")
        except LeaseLost as error:
            lost.append(error.summary)

    writer = threading.Thread(target=write)
    with beside._begin() as db:
        db.execute(text("UPDATE run SET owner = 'b', fence = fence + 1"))
        db.execute(text("UPDATE rank SET status = 'failed' WHERE rank = 0"))
        writer.start()
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        until(lambda: db.execute(waiting).scalar_one() == 1, 60, "the write waits")
    writer.join(60)
    assert lost == ["another process took this run over"]
    assert ledger.by_id(number).ranks[0].status == "failed"


def test_a_process_that_is_stopped_in_a_transaction_holds_nobody_up_for_ever(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(database, "PATIENCE_S", 0.5)
    monkeypatch.setattr(database, "IDLE_S", 0.5)
    with postgres.database() as url, closing(psycopg.connect(url)) as stopped:
        ledger = open_ledger(url)
        stopped.execute("SELECT value FROM meta FOR UPDATE")
        with pytest.raises(LedgerUnusable, match="cannot be used") as caught:
            new(ledger)
        assert "lock timeout" in (caught.value.detail or "")
        assert ledger.runs() == ()
        # One of our own loses its transaction then, and its lock.
        stopped.rollback()
        with pytest.raises(LedgerUnusable, match="cannot be used"):
            _stay(ledger, stopped)
        stopped.rollback()
        new(ledger)
        ledger.close()


def _stay(ledger: Ledger, other: psycopg.Connection) -> None:
    """Stay in a transaction until another one gets what it has locked."""
    with ledger._begin() as db:
        db.execute(text("SELECT value FROM meta FOR UPDATE"))
        other.execute("SET lock_timeout = 0; SELECT value FROM meta FOR UPDATE")
        db.execute(text("SELECT 1"))


def test_what_others_write_into_messages_is_kept_as_text(any_ledger: Ledger):
    number = new(any_ledger)
    lease = any_ledger.take(number, "me")
    assert lease is not None
    any_ledger.change(lease, "told", "a\0b \udcff", message="a\0b \udcff")
    any_ledger.change_rank(lease, 0, 0, message="\0")
    row = any_ledger.by_id(number)
    assert (row.message, row.ranks[0].message) == ("a\ufffdb \\udcff", "\ufffd")
    assert any_ledger.events(number)[-1][1:] == ("told", "a\ufffdb \\udcff")


def test_an_event_alone_is_written_by_who_holds_the_lease(any_ledger: Ledger):
    number = new(any_ledger)
    lease = any_ledger.take(number, "me")
    assert lease is not None
    any_ledger.change(lease, "notice", "node n0: its cloud takes it")
    assert any_ledger.events(number)[-1][1:] == ("notice", "node n0: its cloud takes it")
    with pytest.raises(LeaseLost):
        any_ledger.change(replace(lease, owner="you"), "notice", "x")


@pytest.mark.sqlite
def test_a_new_ledger_that_another_process_is_making_is_waited_for(tmp_path: Path):
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    ends = threading.Timer(1.0, other.execute, ["COMMIT"])
    ends.start()
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ends.join()
    other.close()
    assert ledger.runs() == ()
    ledger.close()


def test_an_unknown_run_is_told_with_those_that_exist(ledger: Ledger):
    with pytest.raises(UnknownRun, match="no run named 'nope'") as caught:
        ledger.get("nope")
    assert caught.value.detail == "nothing was run here yet"
    new(ledger)
    with pytest.raises(UnknownRun) as caught:
        ledger.get("nope")
    assert "job" in (caught.value.detail or "")


def test_a_run_whose_name_is_no_text_is_unknown(ledger: Ledger):
    with pytest.raises(UnknownRun, match="no run named '<dcff>'"):
        ledger.get("\udcff")


@pytest.mark.sqlite
def test_a_ledger_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerUnusable) as caught:
        open_ledger(f"sqlite:///{tmp_path / 'file/ledger.db'}")
    assert caught.value.exit_code == ExitCode.CONFIG
    (tmp_path / "broken.db").write_text("this is no database " * 100)
    with pytest.raises(LedgerUnusable, match="cannot be used"):
        open_ledger(f"sqlite:///{tmp_path / 'broken.db'}")


def test_a_ledger_of_a_newer_orch_is_refused(ledger_url: str):
    url = ledger_url
    ledger = open_ledger(url)
    with ledger._begin() as db:
        db.execute(text("UPDATE meta SET value = '99' WHERE key = 'schema'"))
    ledger.close()
    with pytest.raises(NewerLedger) as caught:
        open_ledger(url)
    assert caught.value.exit_code == ExitCode.CONFLICT


def test_a_server_that_is_away_is_told():
    with pytest.raises(LedgerUnusable):
        open_ledger("postgresql://nobody@127.0.0.1:9/none?connect_timeout=2")


def test_a_run_that_is_being_packed_holds_nobody_up(
    any_ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Files of a gigabyte take minutes to pack: other runs' drivers, and `orch ps`, go on meanwhile."""
    number = new(any_ledger, "other", 1)
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    beside = open_ledger(ledger_url)

    def pack(packed: int) -> str:
        lease = beside.take(number, "driver")
        assert lease is not None
        beside.change(lease, "running", phase="running", status="running")
        assert [row.name for row in beside.runs(active_only=True)] == ["other"]
        assert [row.name for row in beside.runs()] == ["other"]
        with pytest.raises(UnknownRun):
            beside.get("big")
        with pytest.raises(RunConflict, match="a run named big is being submitted"):
            beside.create("big", "lab", ["n0"], lambda _: "{}")
        return f'{{"number": {packed}}}'

    row = any_ledger.create("big", "lab", ["n0"], pack)
    assert (row.status, row.owner, row.plan) == ("submitted", None, f'{{"number": {row.id}}}')
    beside.close()


def test_a_submission_that_was_killed_does_not_keep_its_name(ledger_url: str):
    url = ledger_url
    killed = (
        "import os; from orch.runner.ledger.ledger import open_ledger; "
        f"open_ledger({url!r}).create('job', 'lab', ['n0'], lambda n: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    ledger = open_ledger(url)
    assert ledger.runs() == ()
    assert new(ledger) == 2, "the number of the one before is not given twice"
    ledger.close()


def test_a_login_that_may_only_read_sees_all_and_is_told_that_it_changes_nothing(postgres: Postgres):
    with postgres.database() as url:
        ledger = open_ledger(url)
        number = new(ledger)
        ledger.close()
        role = f"r{url.partition('@/')[2].partition('?')[0]}"
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {role} LOGIN".encode())
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
        try:
            reader = open_ledger(url.replace("tests@", f"{role}@"))
            assert [row.id for row in reader.runs()] == [number]
            assert reader.changes.listed("lab") == ()
            with pytest.raises(LedgerReadOnly, match="may only read") as caught:
                reader.set_desired(number, "stop")
            assert "permission denied" in (caught.value.detail or "")
            with pytest.raises(LedgerReadOnly):
                new(reader)
            reader.close()
        finally:
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(f"DROP OWNED BY {role}".encode())
                admin.execute(f"DROP ROLE {role}".encode())


@pytest.mark.sqlite
def test_a_ledger_that_is_opened_twice_in_a_process_keeps_what_others_may_not_clear_away(tmp_path: Path):
    """The last that closes an SQLite database removes its log: nobody may take himself for that."""
    url = f"sqlite:///{tmp_path / '.orch/ledger.db'}"
    ledger = open_ledger(url)
    number = new(ledger)
    open_ledger(url).close()
    other = f"from orch.runner.ledger.ledger import open_ledger as o; l = o({url!r}); l.runs(); l.close()"
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0
    ledger.set_desired(number, "stop")
    assert ledger.by_id(number).desired == "stop"
    assert open_ledger(url).by_id(number).desired == "stop"
    ledger.close()


def test_who_only_reads_waits_for_no_writer(
    any_ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
):
    number = new(any_ledger)
    any_ledger.close()
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    beside = open_ledger(ledger_url)
    with any_ledger._begin() as db:
        db.execute(text("UPDATE run SET name = 'other'"))
        assert beside.get("job").id == beside.by_id(number).id == number
        assert len(beside.runs(active_only=True)) == len(beside.runs()) == 1
        assert beside.uncollected() == ()
        assert len(beside.events(number)) == 1
    beside.close()


def test_the_lease_of_another_machine_or_namespace_is_kept_until_it_ends(any_ledger: Ledger):
    """Two containers of one host name, each with process numbers of its own."""
    number = new(any_ledger)
    name, form, pid, born, boot, namespace = process_owner().rsplit(":", 5)
    elsewhere = [
        f"{name}:{form}:999999:{born}:{boot}:{int(namespace) + 1}",
        f"{name}:{form}:999999:{born}:{'0' * 36}:{namespace}",
        f"{here()}:999999:12345",  # as orch wrote it before
        f"{here()}:{pid}:12345",
        f"{name}:{form}:999999:::",
    ]
    for owner in elsewhere:
        lease = any_ledger.take(number, owner)
        assert lease is not None
        assert any_ledger.by_id(number).held, owner
        assert any_ledger.take(number, process_owner()) is None, owner
        any_ledger.release(lease)
    here_and_dead = f"{name}:{form}:{pid}:1{born}:{boot}:{namespace}"
    assert any_ledger.take(number, here_and_dead) is not None
    assert any_ledger.take(number, process_owner()) is not None


@pytest.mark.parametrize(
    "url",
    [
        "mysql",
        "mysql://u:hunter2@h/d",
        "postgres://u:hunter2@h/d",
        "postgresql://u:hunter2@h:x/d",
        "sqlite://",
    ],
)
def test_what_is_no_ledger_is_told_in_a_line_without_its_password(url: str):
    with pytest.raises(LedgerUnusable) as caught:
        open_ledger(url)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "postgresql://USER@HOST/DATABASE" in caught.value.text()
    assert "hunter2" not in caught.value.text()


@pytest.mark.sqlite
def test_a_ledger_on_a_network_file_system_has_no_log_and_its_servers_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_the_network(tmp_path, monkeypatch)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = open_ledger(url)
    began = time.time()
    row = ledger.by_id(new(ledger))
    assert began - 5 < row.created_at <= row.now < time.time() + 5
    ledger.close()
    assert journal(tmp_path / "ledger.db") == "delete"
    monkeypatch.undo()
    open_ledger(url).close()  # on the server itself, where its folder is local
    assert journal(tmp_path / "ledger.db") == "delete"


@pytest.mark.sqlite
def test_a_ledger_that_was_begun_on_one_machine_is_taken_to_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = open_ledger(url)
    new(ledger)
    ledger.close()
    assert journal(tmp_path / "ledger.db") == "wal"
    on_the_network(tmp_path, monkeypatch)
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    busy = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    busy.execute("BEGIN")
    busy.execute("SELECT * FROM run").fetchall()
    with pytest.raises(LedgerUnusable, match="cannot be used"):
        open_ledger(url)
    busy.close()
    ledger = open_ledger(url)
    assert [row.name for row in ledger.runs()] == ["job"]
    ledger.close()
    assert journal(tmp_path / "ledger.db") == "delete"


def on_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the file system of this folder is one of those that other machines see."""
    mounts = database.read_mountinfo(Path("/proc/self/mountinfo").read_text())
    kinds = frozenset({database.filesystem_type(folder.resolve(), mounts)})
    monkeypatch.setattr(database, "SHARED", kinds)


def journal(path: Path) -> str:
    db = sqlite3.connect(path)
    try:
        return str(db.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        db.close()


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_ledger_of_an_earlier_version_is_brought_up_to_date(ledger_url: str, version: int):
    ledger = open_ledger(ledger_url)
    number = new(ledger)
    with ledger._begin() as db:
        db.execute(text("DROP INDEX run_by_fleet"))
        db.execute(text("DROP INDEX run_by_array"))
        for added in range(version + 1, schema.SCHEMA_VERSION + 1):
            for column in schema.ADDED.get(added, ()):
                db.execute(text(f"ALTER TABLE {column.table.name} DROP COLUMN {column.name}"))
        db.execute(text("DROP TABLE node_life"))
        if version < 5:
            db.execute(text("DROP TABLE sample"))
        if version < 4:
            db.execute(text("DROP TABLE controller"))
        if version < 2:
            db.execute(text("DROP TABLE attempt"))
        db.execute(text(f"UPDATE meta SET value = '{version}' WHERE key = 'schema'"))
    ledger.close()
    openers = [threading.Thread(target=lambda: open_ledger(ledger_url).close()) for _ in range(4)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(60)
    ledger = open_ledger(ledger_url)
    row = ledger.by_id(number)
    assert (row.name, row.retry_tries, row.next_at, row.attempts) == ("job", 0, None, ())
    assert (row.priority, row.queued_at) == (0, None)
    assert (row.array, row.array_limit) == (None, None)
    lease = ledger.take(number, "me")
    assert lease is not None
    ledger.wait(lease, Waiting("why", 15.0, None, 1, for_nodes=True, in_use=True), ["error"])
    assert ledger.by_id(number).attempts[0].events == ("error",)
    assert ledger.line("lab").position(number) == 1
    assert ledger.controllers() == ()
    ledger.add_sample(number, 0, 2, "[]")
    assert [each.readings for each in ledger.samples(number, 0)] == ["[]"]
    ledger.record_nodes("demo", "", Look("lab", (PresentNode("lab-0", "i", "local", "own"),)))
    assert [life.node for life in ledger.node_lives("demo")] == ["lab-0"]
    ledger.close()


def test_a_run_that_waits_keeps_what_its_attempts_were(any_ledger: Ledger):
    number = new(any_ledger)
    lease = any_ledger.take(number, "me")
    assert lease is not None
    any_ledger.mark_started(lease, "ranks 0,1")
    any_ledger.change_rank(lease, 0, 1, status="failed", reason="instance_unreachable")
    any_ledger.change_rank(lease, 0, 0, collected=1, status="terminated", reason="sibling_failed")
    before = any_ledger.by_id(number)
    any_ledger.wait(lease, Waiting("n1 is silent", 15.0, before.now, 1), ["error", "interruption"])
    row = any_ledger.by_id(number)
    assert (row.status, row.phase, row.reason, row.message) == ("pending", "waiting", None, "n1 is silent")
    assert (row.active, row.attempt, row.next_attempt, row.retry_tries) == (True, 0, 1, 1)
    assert row.retry_since == before.now
    assert 10 < (row.next_at or 0) - row.now <= 15
    (ended,) = row.attempts
    assert (ended.plan, ended.events, ended.started_at) == (
        before.plan,
        ("error", "interruption"),
        before.started_at,
    )
    with pytest.raises(RunConflict):
        new(any_ledger)  # it is active, and has its name
    any_ledger.begin_attempt(lease, 1, '{"next": 1}', ["n0", "n2"])
    row = any_ledger.by_id(number)
    assert (row.status, row.phase, row.attempt, row.plan) == ("submitted", "submitted", 1, '{"next": 1}')
    assert (row.started_at, row.message, row.next_at, row.retry_tries) == (None, None, None, 1)
    assert [(rank.node, rank.status) for rank in row.ranks] == [("n0", "submitted"), ("n2", "submitted")]
    assert [rank.node for rank in row.attempts[0].ranks] == ["n0", "n1"]
    assert any_ledger.failed_nodes(number) == {"n1": LOST_WEIGHT}
    for rank in (0, 1):
        any_ledger.change_rank(lease, 1, rank, collected=1)
    any_ledger.finish(lease, "done", "all_jobs_done", None)
    # What an earlier attempt left on a node that was silent is still to be cleaned up.
    assert [each.id for each in any_ledger.uncollected()] == [number]
    any_ledger.change_rank(lease, 0, 1, collected=1)
    assert any_ledger.uncollected() == ()


def test_a_node_weighs_more_with_every_attempt_that_failed_on_it(any_ledger: Ledger):
    number = new(any_ledger)
    lease = any_ledger.take(number, "me")
    assert lease is not None
    for attempt, reasons in enumerate((("container_exited_with_error",) * 2, ("executor_error", None))):
        if attempt:
            any_ledger.begin_attempt(lease, attempt, "{}", ["n0", "n2"])
        for rank, reason in enumerate(reasons):
            if reason is not None:
                any_ledger.change_rank(lease, attempt, rank, status="failed", reason=reason)
        any_ledger.wait(lease, Waiting("why", 0.0, None, 1), ["error"])
    assert any_ledger.failed_nodes(number) == {"n0": 2, "n1": 1}
    assert any_ledger.failed_nodes(number, lost_only=True) == {}
    any_ledger.finish(lease, "terminated", "stopped_by_user", None)
    assert any_ledger.by_id(number).next_at is None


def test_a_try_without_nodes_keeps_its_number(any_ledger: Ledger):
    waiting = Waiting("no free nodes", 15.0, None, 1)
    row = any_ledger.create("job", "lab", ["n0"], lambda _: "{}", waiting)
    assert (row.status, row.attempt, row.next_attempt, row.ranks[0].collected) == ("pending", 0, 0, True)
    lease = any_ledger.take(row.id, "me")
    assert lease is not None
    any_ledger.wait(lease, Waiting("still none", 30.0, row.created_at, 2))
    row = any_ledger.by_id(row.id)
    assert (row.message, row.next_attempt, row.attempts, row.retry_tries) == ("still none", 0, (), 2)
    any_ledger.begin_attempt(lease, 0, "{}", ["n7"])
    assert [rank.node for rank in any_ledger.by_id(row.id).ranks] == ["n7"]


def test_of_those_who_see_to_a_run_one_keeps_a_sample(shared: tuple[Ledger, Ledger]):
    one, other = shared
    number = new(one)
    assert one.sample_is_due(number)
    with ThreadPoolExecutor(8) as pool:
        kept = [pool.submit(each.add_sample, number, 0, 2, "[null]") for each in (one, other) * 4]
        for each in kept:
            each.result()
    assert [each.readings for each in other.samples(number, 0)] == ["[null]"]
    assert not other.sample_is_due(number)
    assert other.samples(number, 1) == other.samples(number, 0, since=time.time() + 60) == ()


def test_samples_are_bounded(any_ledger: Ledger, monkeypatch: pytest.MonkeyPatch):
    """The last hour keeps all of its own, what was before is thinned, and all runs together have so many."""
    number, other = new(any_ledger), new(any_ledger, "other")
    monkeypatch.setattr(metric_samples, "DUE_S", -1.0)
    with any_ledger._begin() as db:
        now = db.scalar(select(schema.clock()))
        values = {"run_id": number, "attempt": 0, "ranks": 2, "readings": "[]"}
        ages = [10.0 * index + 5 for index in range(1, metric_samples.MOST_OF_RUN + 1)]
        db.execute(insert(schema.sample), [{**values, "at": now - age} for age in ages])
        db.execute(insert(schema.sample).values({**values, "run_id": other, "at": now - 8 * 86_400}))
    any_ledger.add_sample(number, 0, 2, "[]")
    kept = [now - each.at for each in any_ledger.samples(number, 0)]
    fine = [age for age in kept if age < metric_samples.FINE_S]
    coarse = [age for age in kept if age > metric_samples.FINE_S]
    assert len(fine) == 360
    assert metric_samples.COARSE * 0.9 < len(coarse) <= metric_samples.COARSE
    gaps = [before - after for before, after in pairwise(coarse)]
    assert (min(gaps), max(gaps)) == pytest.approx((20, 30), abs=0.1)
    assert coarse[0] == pytest.approx(ages[-1], abs=1)
    monkeypatch.setattr(metric_samples, "LOOK_AT_EACH", 1)
    monkeypatch.setattr(metric_samples, "MOST_RANKS", 200)
    any_ledger.add_sample(number, 0, 2, "[1]")
    assert any_ledger.samples(other, 0) == ()
    assert len(any_ledger.samples(number, 0)) == 100
    assert any_ledger.samples(number, 0)[-1].readings == "[1]"


@pytest.mark.parametrize(
    ("where", "told", "hint"),
    [
        ("sqlite:////x/ledger.db", "database is locked", "another process holds it"),
        ("sqlite:////x/ledger.db", "unable to open database file", "is its folder writable"),
        ("postgresql://db/orch", "connection refused", "is the server up"),
    ],
)
def test_a_ledger_that_cannot_be_used_says_what_to_do(where: str, told: str, hint: str) -> None:
    error = database.unusable(where, RuntimeError(f"{told}\nmore"))
    assert (error.where, error.detail) == (where, told)
    assert error.hint is not None
    assert error.hint.startswith(hint)
