"""The order in which fleets of a folder are brought up."""

from __future__ import annotations

import itertools

import pytest

from orch.stacks.plans.waves import waves


def test_each_wave_comes_after_what_it_depends_on() -> None:
    diamond = {"top": ["left", "right"], "right": ["base"], "left": ["base"], "base": [], "alone": []}
    assert waves(diamond) == (("base", "alone"), ("right", "left"), ("top",))


def test_fleets_of_other_files_are_left_out() -> None:
    assert waves({"b": ["elsewhere"], "a": []}) == (("b", "a"),)
    assert waves({}) == ()


@pytest.mark.parametrize("order", list(itertools.permutations("abcd"))[::5])
def test_no_order_of_writing_puts_a_fleet_before_its_own(order: tuple[str, ...]) -> None:
    needs = {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["c"]}
    found = waves({name: needs[name] for name in order})
    assert found == (("a",), ("b",), ("c",), ("d",))
