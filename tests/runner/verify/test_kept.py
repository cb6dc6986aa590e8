"""What verifications found is kept in the ledger, and good figures are what later ones are held to."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

from orch.runner.ledger import database, schema
from orch.runner.ledger.history.verifications import LATEST, KeptFigure, Verifications
from orch.runner.ledger.ledger import Ledger, open_ledger

CONDITIONS = "2 nodes, 16 ranks, NCCL, efa"


def run(ledger: Ledger, name: str) -> int:
    return ledger.create(name, "lab", ["n0", "n1"], lambda number: f'{{"number": {number}}}').id


def figure(value: float, judgement: str = "ok", subject: str = "") -> KeptFigure:
    return KeptFigure("all_reduce", subject, 16 << 30, value, "GB/s", judgement)


def values(kept: Verifications, conditions: str = CONDITIONS) -> list[float]:
    return kept.former("lab", conditions).get(("all_reduce", "", 16 << 30), [])


def test_figures_that_were_fine_under_the_same_conditions_are_what_a_fleet_reached_before(
    ledger_url: str,
) -> None:
    ledger = open_ledger(ledger_url)
    try:
        kept = ledger.verifications("p", "0a1b2c")
        assert kept.of_fleet("lab") == ()
        first, second = run(ledger, "verify-1"), run(ledger, "verify-2")
        kept.keep("lab", first, CONDITIONS, [figure(440.0), figure(900.0, "ok", "n0 card 1")])
        kept.keep("lab", second, CONDITIONS, [figure(20.0, "low")])
        for other, value in (("4 nodes", 300.0), (CONDITIONS, 430.0)):
            kept.keep("lab", run(ledger, f"verify-{value:.0f}"), other, [figure(value, "no floor")])
        kept.keep("other", run(ledger, "verify-other"), CONDITIONS, [figure(1.0)])
        kept.keep("lab", run(ledger, "verify-none"), CONDITIONS, [])
        ledger.verifications("p", "ffffff").keep(
            "lab", run(ledger, "verify-scope"), CONDITIONS, [figure(2.0)]
        )
        assert sorted(values(kept)) == [430.0, 440.0]
        assert values(kept, "4 nodes") == [300.0]
        latest = kept.of_fleet("lab")
        assert [each.figures[0].value for each in latest] == [430.0, 300.0, 20.0, 440.0]
        assert (latest[-1].run, latest[-1].figures[1].subject) == (first, "n0 card 1")
        assert latest[0].at >= latest[-1].at > 0
    finally:
        ledger.close()


def test_what_a_fleet_reached_long_ago_is_forgotten_for_what_it_reaches_now(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    try:
        kept = ledger.verifications("p", "0a1b2c")
        for number in range(LATEST + 5):
            kept.keep("lab", run(ledger, f"verify-{number}"), CONDITIONS, [figure(float(number))])
        assert sorted(values(kept)) == [float(number) for number in range(5, LATEST + 5)]
    finally:
        ledger.close()


def test_a_ledger_of_the_version_before_gets_the_table(ledger_url: str) -> None:
    open_ledger(ledger_url).close()
    engine, _ = database.open_engine(ledger_url)
    with engine.begin() as db:
        schema.verification.drop(db)
        db.execute(text("DROP INDEX run_by_array"))
        for column in (column for version, added in schema.ADDED.items() if version > 7 for column in added):
            db.execute(text(f"ALTER TABLE {column.table.name} DROP COLUMN {column.name}"))
        db.execute(text("UPDATE meta SET value = '7' WHERE key = 'schema'"))
    engine.dispose()
    ledger = open_ledger(ledger_url)
    try:
        ledger.verifications("p", "0a1b2c").keep("lab", run(ledger, "verify-1"), CONDITIONS, [figure(1.0)])
        assert values(ledger.verifications("p", "0a1b2c")) == [1.0]
    finally:
        ledger.close()
