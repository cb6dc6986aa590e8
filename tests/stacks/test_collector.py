"""While a program registers its resources, Python does not search them for cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from orch.stacks.engine.process import without_collector


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def searches() -> int:
    return sum(each["collections"] for each in gc.get_stats())


def test_a_thousand_resources_are_not_gone_through_again_and_again() -> None:
    with without_collector():
        before = searches()
        kept = [[each] for each in range(100_000)]
        assert searches() == before
    assert gc.isenabled()
    assert len(kept) == 100_000


def test_what_a_program_made_is_not_gone_through_as_soon_as_it_has_ended() -> None:
    with without_collector():
        before = searches()
        kept = [[each] for each in range(100_000)]
    kept.append([len(kept)])
    assert searches() == before


def test_the_search_goes_on_after_a_program_that_failed() -> None:
    with pytest.raises(ValueError, match="of the program"), without_collector():
        raise ValueError("of the program")
    assert gc.isenabled()


def test_who_had_it_off_has_it_off_afterwards() -> None:
    gc.disable()
    with without_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()
