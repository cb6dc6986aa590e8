"""Quantities of Kubernetes are read exactly, and written as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.spec.grammar.quantities import amount, quantity, rendered, sums


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1500m", Fraction(3, 2)),
        ("8", 8),
        ("1Gi", 2**30),
        ("2k", 2000),
        ("0.5", Fraction(1, 2)),
        ("250n", Fraction(1, 4 * 10**6)),
        ("12e3", 12000),
        ("1E-3", Fraction(1, 1000)),
        ("3E", 3 * 10**18),
        ("-1", -1),
        (" 4 ", 4),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: Fraction) -> None:
    assert quantity(text) == number
    assert amount(text) == number


@pytest.mark.parametrize("text", ["", "8 GB", "x", "1..2", ".", "1e", "8GB", "1ki", "Gi", "1e1000"])
def test_what_is_no_quantity_is_told_and_counts_as_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(text)
    assert amount(text) == 0


@given(st.sampled_from(["cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"]), st.fractions(0, 10**12))
def test_what_is_written_is_never_more_than_it_was(resource: str, value: Fraction) -> None:
    step = {"cpu": Fraction(1, 1000), "nvidia.com/gpu": Fraction(1)}.get(resource, Fraction(2**20))
    assert value - step < quantity(rendered(resource, value)) <= value


def test_lists_of_resources_add_up_by_resource() -> None:
    assert sums([{"cpu": "1500m", "memory": "1Gi"}, {"cpu": "2"}]) == {"cpu": Fraction(7, 2), "memory": 2**30}
