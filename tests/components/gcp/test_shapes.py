"""Every kind of machine through the real engine, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.apart import passes

from orch.stacks.engine import install as engines

pytestmark = [
    pytest.mark.skipif(engines.find() is None, reason="no Pulumi engine: `orch engine install`"),
    pytest.mark.timeout(1500),  # a whole suite
]


SUITE = Path(__file__).with_name("shapes_suite.py")


def test_each_layout_of_machines_comes_up_as_planned_stays_and_goes() -> None:
    passes(SUITE)


@pytest.mark.soak
def test_every_kind_of_machine_comes_up_as_planned_stays_and_goes() -> None:
    passes(SUITE, "-m", "soak or not soak")
