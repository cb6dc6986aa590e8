"""What `orch ps` and `orch logs` take from a ledger that is large, or whose clock is another one."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from kit.ledgers.oldrows import old_row
from kit.support import Folder
from sqlalchemy import insert, select

from orch.cli.runs.logs import logs
from orch.runner.ledger import database, schema
from orch.runner.ledger.ledger import SHOWN, open_ledger
from orch.runner.ledger.run_folder import open_folder
from orch.runner.node.logs import LogFile
from orch.runner.plan.run_names import RunName
from orch.stacks.project.project import find

ENDED = SHOWN + 5


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    find(tmp_path).prepare()
    return Folder(tmp_path)


def test_a_long_list_has_all_active_runs_and_says_what_it_leaves_out(folder: Folder) -> None:
    ledger = open_ledger(find(folder.path).ledger_url)
    old_row(ledger, "early")
    lease = ledger.take(old_row(ledger, "late").id, "somebody")
    assert lease is not None
    ledger.finish(lease, "done", "all_jobs_done", None)
    with ledger._begin() as db:
        ended = dict(db.execute(select(schema.run).where(schema.run.c.id == lease.run_id)).one()._mapping)
        del ended["id"]
        db.execute(insert(schema.run), [{**ended, "name": f"job-{each}"} for each in range(ENDED - 1)])
    ledger.close()
    said = folder.orch("ps", "-a", "--json")
    assert said.code == 0, said.err
    assert len(said.json["runs"]) == SHOWN + 1
    assert (said.json["runs"][-1]["run"], said.json["left_out"]) == ("early", ENDED - SHOWN)
    assert "1,000 runs that ended are shown, 5 earlier ones are left out" in folder.orch("ps", "-a").err
    found = folder.orch("ps", "-a", "--status", "submitted", "--json").json
    assert ([run["run"] for run in found["runs"]], found["left_out"]) == (["early"], 0)
    assert "left out" not in folder.orch("ps").err


class Fast(datetime.datetime):
    """The clock of a machine that is a quarter of an hour ahead."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Fast:
        return super().now(tz) + datetime.timedelta(minutes=15)


def test_the_age_of_a_line_is_told_by_the_clock_of_the_ledger(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(database, "is_shared", lambda _: True)  # the file server's clock is the ledger's
    project = find(folder.path)
    ledger = open_ledger(project.ledger_url)
    row = old_row(ledger, "job")
    lease = ledger.take(row.id, "somebody")
    assert lease is not None
    ledger.change_rank(lease, 0, 0, collected=1)
    ledger.finish(lease, "done", "all_jobs_done", None)
    now = datetime.datetime.fromtimestamp(ledger.by_id(row.id).now, datetime.timezone.utc)
    ledger.close()
    kept = LogFile(open_folder(project.dot, RunName.parse("job"), row.id).log(0))
    kept.open()
    for minutes in (20, 7):
        at = (now - datetime.timedelta(minutes=minutes)).isoformat(timespec="microseconds")
        kept.append(f"{at.replace('+00:00', 'Z')} {minutes} minutes ago\n".encode())
    kept.close()
    monkeypatch.setattr(datetime, "datetime", Fast)
    logs("job", since="10m")
    assert capsys.readouterr().out == "7 minutes ago\n"
