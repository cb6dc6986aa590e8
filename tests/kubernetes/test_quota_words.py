"""How the stand-in for Kueue writes amounts, and reads them again."""

from __future__ import annotations

import pytest

from orch.rehearsal.kubernetes.controllers.kueue_admission import told
from orch.rehearsal.kubernetes.kubelet.containers import quantity


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("nvidia.com/gpu", 32, "32"),
        ("cpu", 2, "2"),
        ("cpu", 0.1 + 0.2, "300m"),
        ("memory", 512 * 2**30, "512Gi"),
        ("memory", 1649267441664 - 2**20, "1572863Mi"),
        ("memory", 30816, "30816"),
        ("hugepages-2Mi", 5120 * 2**20, "5Gi"),
        ("ephemeral-storage", 0, "0"),
    ],
)
def test_an_amount_is_as_large_when_it_is_read_again(resource: str, amount: float, text: str) -> None:
    assert told(resource, amount) == text
    assert quantity(text) == pytest.approx(amount, abs=0.001)
