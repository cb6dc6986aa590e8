"""Two people with a folder and a home of their own: one state in a bucket, one ledger on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.engine.remote_state import bucket
from kit.ledgers.postgres import Postgres
from kit.support import Folder, Said, containers, fleet_yaml, until
from platformdirs import user_cache_dir

TASK = """\
type: task
name: {name}
image: orch/mpi
commands: [{commands}]
"""


@dataclass(frozen=True)
class Person:
    """Somebody with a project of their own in a home of their own. The engine is on the machine for all."""

    name: str
    folder: Folder

    def orch(self, *words: str) -> Said:
        env = {
            "HOME": str(self.folder.path.parent),
            "USER": self.name,
            "LOGNAME": self.name,
            "XDG_CACHE_HOME": str(Path(user_cache_dir("orch")).parent),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        return self.folder.orch(*words, env=env, timeout=500)

    def does(self, *words: str) -> str:
        said = self.orch(*words)
        assert said.code == 0, said.err
        return said.out


@pytest.fixture
def people(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Person, Person]]:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "of the team")

    def person(name: str) -> Person:
        path = tmp_path / name / "project"
        path.mkdir(parents=True)
        (path / "orch.yml").write_text(f"project: team\nstate: {state}\nledger: {ledger}\n")
        (path / "lab.yml").write_text(fleet_yaml("lab", 1))
        return Person(name, Folder(path))

    with bucket() as state, postgres.database() as ledger:
        yield person("ada"), person("bob")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_sees_enters_and_ends_what_the_other_began(people: tuple[Person, Person]) -> None:
    ada, bob = people
    ada.folder.write("long.yml", TASK.format(name="long", commands="echo begun, sleep 600"))
    bob.folder.write("once.yml", TASK.format(name="once", commands="echo his"))
    try:
        ada.does("up", "lab.yml", "--yes")
        assert "no changes" in bob.does("up", "lab.yml", "--yes")
        ada.does("run", "long.yml", "--detach")
        (seen,) = bob.orch("ps", "--json").json["runs"]
        assert (seen["run"], seen["submitted_by"].partition("@")[0]) == ("long", "ada")
        until(lambda: "begun" in bob.does("logs", "long"), 120, "he reads her log")
        assert bob.does("exec", "long", "--", "echo", "in", "her", "container").split()[-3:] == [
            *("in", "her", "container")
        ]
        held = bob.orch("down", "lab", "--yes")
        assert (held.code, "long" in held.err) == (9, True), held.err
        bob.does("stop", "long")
        (ended,) = ada.orch("ps", "-a", "--json").json["runs"]
        assert (ended["status"], ended["reason"]) == ("terminated", "stopped_by_user")

        assert "his" in bob.does("run", "once.yml")
        assert "bob@" in ada.orch("logs", "once").err
    finally:
        said = bob.orch("down", "lab", "--yes", "--force")
    assert said.code == 0, said.err
    assert containers(ada.folder, "lab") == {}
