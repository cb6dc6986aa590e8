"""What a run says of the time before its commands: images on their way, and how long it waited."""

from __future__ import annotations

import io
from dataclasses import fields
from typing import Any

import pytest

from orch.cli.output.run import Live, summary
from orch.runner.events import ImageProgress
from orch.runner.ledger.records import RankRow, RunRow


def row(status: str, created: float, started: float | None) -> RunRow:
    known: dict[str, Any] = {
        "name": "train",
        "status": status,
        "created_at": created,
        "started_at": started,
        "finished_at": 200.0,
        "ranks": (RankRow(0, "lab-0", status, None, None, None, None, True),),
    }
    return RunRow(**{each.name: known.get(each.name) for each in fields(RunRow)})


@pytest.mark.parametrize(
    ("status", "created", "said"),
    [
        ("done", 110.0, "run train: done in 20s on 1 node; it began after 1m 10s"),
        ("done", 179.0, "run train: done in 20s on 1 node"),
        ("terminated", 110.0, "run train: stopped in 20s; it began after 1m 10s"),
    ],
)
def test_a_run_that_waited_says_for_how_long(status: str, created: float, said: str) -> None:
    assert summary(row(status, created, 180.0)) == said


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (713 << 20, "node lab-0: has the image orch/job (713 MiB in 1m 18s)\n"),
        (None, "node lab-0: has the image orch/job (in 1m 18s)\n"),
    ],
)
def test_an_image_that_came_says_its_size_and_its_time(
    total: int | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    event = ImageProgress("lab-0", "orch/job", total or 0, total, finished=True, seconds=78.4)
    Live(io.StringIO(), colour=False).handle(event)
    assert capsys.readouterr().err == said
