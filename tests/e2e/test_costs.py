"""`orch cost` and `budget.total` over the life of a fleet in a rehearsed AWS account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kit.clouds.rehearsals import Rehearsed
from sqlalchemy import text

from orch.rehearsal.aws.client_hook import session
from orch.runner.ledger.ledger import open_ledger

pytestmark = pytest.mark.usefixtures("engine")
HOUR = 3600.0


class Costs(Rehearsed):
    """A project, its ledger and what `orch cost` says."""

    @property
    def ledger(self) -> Path:
        return self.path / ".orch/rehearsal/ledger.db"

    def cost(self, *words: str) -> Any:
        said = self.orch("cost", *words, "--json", "--rehearse")
        assert said.code == 0, said.err
        return json.loads(said.out)

    def rows(self) -> list[dict[str, Any]]:
        rows = text("SELECT * FROM node_life WHERE kind = 'node' ORDER BY id")
        with closing(open_ledger(f"sqlite:///{self.ledger}")) as ledger, ledger._begin() as database:
            return [dict(row) for row in database.execute(rows).mappings()]

    def change(self, statement: str) -> None:
        with closing(open_ledger(f"sqlite:///{self.ledger}")) as ledger, ledger._begin() as database:
            database.execute(text(statement))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Costs]:
    there = Costs.make(tmp_path_factory.mktemp("costs"))
    (there.path / "orch.yml").write_text("project: tests\ntags: {cost-centre: '4'}\n")
    yield there
    there.down()


def write(there: Costs, nodes: object, **more: object) -> str:
    return there.fleet(nodes, tags={"team": "nlp"}, **more)


def test_a_fleet_from_its_first_node_to_its_end(there: Costs) -> None:
    write(there, 2)
    assert there.up().code == 0
    first = there.rows()
    assert [(row["node"], row["market"], row["ended_at"]) for row in first] == [
        ("p5-0", "on-demand", None),
        ("p5-1", "on-demand", None),
    ]
    price = first[0]["price_hourly"]
    assert price > 10  # of the price list, for eight H100
    assert set(there.nodes()) == {row["identity"] for row in first}
    assert json.loads(first[0]["tags"]) == {"team": "nlp", "cost-centre": "4"}

    # Ten hours later: one was ended by hand, and made anew by the next `up`.
    there.change(f"UPDATE node_life SET began_at = began_at - {10 * HOUR}, seen_at = seen_at - {2 * HOUR}")
    lost = first[0]["identity"]
    session(there.cloud).client("ec2", region_name="us-east-1").terminate_instances(InstanceIds=[lost])
    assert there.up().code == 0
    rows = there.rows()
    assert [(row["node"], row["ended_at"] is None, row["exact"]) for row in rows] == [
        ("p5-0", False, 0),
        ("p5-1", True, 1),
        ("p5-0", True, 1),
    ]
    assert rows[0]["identity"] != rows[2]["identity"]
    assert rows[0]["ended_at"] <= rows[2]["began_at"] + 1

    found = there.cost("--since", "30d")
    (group,) = found["groups"]
    assert group["name"] == "p5"
    assert 20 <= group["node_hours"] < 21
    assert group["gpu_hours"] == pytest.approx(8 * group["node_hours"], rel=1e-3)
    assert group["cost"] == pytest.approx(price * group["node_hours"], rel=0.02)
    assert (group["busy"], group["idle"]) == (0, group["cost"])
    assert 1.9 * price < group["uncertain"] < 2.2 * price
    assert found["forecast"]["hourly"] == pytest.approx(2 * price, rel=0.01)
    by_tag = there.cost("p5.yml", "--by", "tag=team", "--since", "30d")
    assert [each["name"] for each in by_tag["groups"]] == ["nlp"]
    table = there.orch("cost", "p5", "--by", "user", "--since", "30d", "--rehearse")
    assert table.code == 0
    assert "(idle)" in table.out
    assert "not counted: disks" in table.out
    assert there.rows() != []


def test_what_is_spent_bars_new_nodes_and_no_removal(there: Costs) -> None:
    spent = there.cost("--since", "30d")["total"]["cost"]
    assert spent > 100
    write(there, 3, budget={"total": f"{spent - 50:.2f}"})
    for verb in ("preview", "up"):
        said = there.orch(verb, "p5.yml", "--rehearse", *(["--yes"] if verb == "up" else []))
        assert said.code == 4, said.err
        assert "p5.yml:" in said.err
        assert "error ORCH281" in said.err
        assert "1 new node would add to it" in said.err
    assert len(there.nodes()) == 2
    # One less is fine.
    write(there, 1, budget={"total": f"{spent - 50:.2f}"})
    said = there.up()
    assert said.code == 0, said.err
    assert "ORCH289" in said.err
    assert [(row["node"], row["ended_at"] is None, row["exact"]) for row in there.rows()][1:] == [
        ("p5-1", False, 1),
        ("p5-0", True, 1),
    ]


def test_a_fleet_of_an_earlier_version_counts_from_the_creation_of_its_nodes(there: Costs) -> None:
    before = {row["node"]: row["began_at"] for row in there.rows() if row["ended_at"] is None}
    there.change("DELETE FROM node_life")
    there.cost()
    assert {row["node"]: row["began_at"] for row in there.rows()} == pytest.approx(before)


@pytest.mark.sqlite
def test_a_ledger_that_cannot_be_written_fails_no_up(there: Costs) -> None:
    kept = there.ledger.read_bytes()
    for name in ("ledger.db-wal", "ledger.db-shm"):
        there.ledger.with_name(name).unlink(missing_ok=True)
    there.ledger.write_bytes(b"no database" * 1000)
    write(there, 3, budget={"total": 1})
    said = there.up()
    assert said.code == 0, said.err
    assert "warning: since when the nodes of p5 are there is not recorded" in said.err
    assert "ORCH282" in said.err
    assert len(there.nodes()) == 3
    cost = there.orch("cost", "--rehearse")
    assert cost.code != 0
    assert "the run ledger cannot be used" in cost.err
    there.ledger.write_bytes(kept)
    write(there, 2)
    assert there.orch("reconcile", "--rehearse").code == 0
    assert [row["node"] for row in there.rows() if row["ended_at"] is None] == ["p5-0", "p5-1", "p5-2"]


def test_down_ends_all_and_nothing_is_left_to_come(there: Costs) -> None:
    assert there.down().code == 0
    assert all(row["ended_at"] is not None and row["exact"] for row in there.rows())
    found = there.cost()
    assert (found["forecast"]["hourly"], found["forecast"]["more"]) == (0, 0)
    assert found["forecast"]["spent"] == pytest.approx(found["total"]["cost"], abs=0.01)
    assert there.orch("cost", "nosuch", "--rehearse").code == 3
    for words in (["--by", "moon"], ["--by", "fleet=x"], ["--since", "yesterday"], ["--since", "2999-01-01"]):
        said = there.orch("cost", *words, "--rehearse")
        assert said.code == 2, (words, said.err)
        assert "Traceback" not in said.err
