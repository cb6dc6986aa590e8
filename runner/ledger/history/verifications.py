"""What verifications of fleets found: every figure is kept, good ones are what later ones are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select

from orch.runner.ledger import schema
from orch.runner.ledger.schema import clock

LATEST = 20
"""How many former verifications a new one is held to: what a fleet reached long ago was another fleet's."""

_table = schema.verification


@dataclass(frozen=True)
class KeptFigure:
    """A figure of a verification. `subject`: a node, a card of it, or "" for all nodes; `size`: bytes of a
    message, else 0."""

    measure: str
    subject: str
    size: int
    value: float
    unit: str
    judgement: str


@dataclass(frozen=True)
class KeptVerification:
    """A verification: its run, when it was, and its figures."""

    run: int
    at: float
    conditions: str
    figures: tuple[KeptFigure, ...]


@dataclass(frozen=True)
class Verifications:
    """The verifications in a ledger. `scope`: which state of a project of this name."""

    _begin: Callable[[], AbstractContextManager[Connection]]
    _reading: Callable[[], AbstractContextManager[Connection]]
    project: str
    scope: str

    def keep(self, fleet: str, run: int, conditions: str, figures: Sequence[KeptFigure]) -> None:
        """Keep what a run found. `conditions`: what results must have in common to be compared."""
        if not figures:
            return
        with self._begin() as db:
            common = {
                "project": self.project,
                "scope": self.scope,
                "fleet": fleet,
                "run_id": run,
                "conditions": conditions,
                "at": db.scalar(select(clock())),
            }
            db.execute(insert(_table), [{**common, **asdict(each)} for each in figures])

    def of_fleet(self, fleet: str, limit: int = LATEST) -> tuple[KeptVerification, ...]:
        """The latest verifications of a fleet, the newest first."""
        mine = (
            _table.c.project == self.project,
            _table.c.scope == self.scope,
            _table.c.fleet == fleet,
        )
        runs = select(_table.c.run_id).where(*mine).distinct().order_by(_table.c.run_id.desc()).limit(limit)
        with self._reading() as db:
            numbers = list(db.scalars(runs))
            query = select(_table).where(*mine, _table.c.run_id.in_(numbers)).order_by(_table.c.id)
            found: dict[int, list[KeptFigure]] = {number: [] for number in numbers}
            heads: dict[int, tuple[float, str]] = {}
            for row in db.execute(query):
                heads[row.run_id] = (row.at, row.conditions)
                found[row.run_id].append(
                    KeptFigure(row.measure, row.subject, row.size, row.value, row.unit, row.judgement)
                )
        return tuple(
            KeptVerification(number, *heads[number], tuple(figures)) for number, figures in found.items()
        )

    def former(self, fleet: str, conditions: str) -> dict[tuple[str, str, int], list[float]]:
        """What a fleet reached under the same conditions, by measure, subject and size: of figures that fell
        short of something none."""
        values: dict[tuple[str, str, int], list[float]] = {}
        for each in self.of_fleet(fleet):
            for figure in each.figures if each.conditions == conditions else ():
                if figure.judgement in ("ok", "no floor"):
                    values.setdefault((figure.measure, figure.subject, figure.size), []).append(figure.value)
        return values
