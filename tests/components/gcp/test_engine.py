"""Changes of fleets that are up, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from apart import passes

from orch.stacks.pulumi import install as engines

pytestmark = [
    pytest.mark.skipif(engines.find() is None, reason="no Pulumi engine: `orch engine install`"),
    pytest.mark.timeout(1500),  # a whole suite
]


def test_what_becomes_of_a_fleet_whose_file_changes() -> None:
    passes(Path(__file__).with_name("engine_suite.py"))
