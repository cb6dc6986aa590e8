"""Every case of each backend's `golden/`: its plan, or what is wrong with its fleet."""

from __future__ import annotations

import pytest
from kit.clouds.plan_cases import PlanCase, case_type, clouds

TYPES = {name: case_type(name) for name in clouds()}
CASES = [(each, name) for each in TYPES.values() for name in each.names()]
PLANNED = [(each, name) for each in TYPES.values() for name in each.planned()]


def ids(value: type[PlanCase] | str) -> str:
    return value if isinstance(value, str) else value.backend


@pytest.mark.parametrize(("case_type", "name"), CASES, ids=ids)
def test_a_plan_is_as_written_down(case_type: type[PlanCase], name: str) -> None:
    answer = case_type.of(name).outcome()
    assert answer == case_type.goldens().outcome(name)
    assert ("findings" in answer) == (name not in case_type.planned())


@pytest.mark.parametrize("backend", TYPES)
def test_every_answer_belongs_to_a_case(backend: str) -> None:
    assert sorted(TYPES[backend].goldens().records) == TYPES[backend].names()


@pytest.mark.parametrize(("case_type", "name"), PLANNED, ids=ids)
def test_the_same_input_gives_the_same_plan(case_type: type[PlanCase], name: str) -> None:
    assert case_type.of(name).plan() == case_type.of(name).plan()
