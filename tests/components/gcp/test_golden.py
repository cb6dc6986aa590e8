"""Every case of `golden/`: what a fleet becomes, or what is wrong with it."""

from __future__ import annotations

import json
import os

import pytest
from kit.clouds.gcp_cases import GOLDEN, Case, cases


@pytest.mark.parametrize("name", cases())
def test_a_plan_is_as_written_down(name: str) -> None:
    answer = Case.of(name).outcome()
    file = GOLDEN / f"{name}.json"
    if os.environ.get("ORCHCTL_REWRITE_GOLDEN"):
        file.write_text(json.dumps(answer, indent=1) + "\n")
    assert answer == json.loads(file.read_text())


def test_every_answer_belongs_to_a_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == cases()


@pytest.mark.parametrize("name", [name for name in cases() if not name.startswith("bad-")])
def test_the_same_input_gives_the_same_plan(name: str) -> None:
    assert Case.of(name).plan() == Case.of(name).plan()
