"""Changes of fleets that are up, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.apart import passes

from orch.stacks.engine import install as engines

pytestmark = [
    pytest.mark.skipif(engines.find() is None, reason="no Pulumi engine: `orch engine install`"),
    pytest.mark.timeout(1500),  # a whole suite
]


def test_what_becomes_of_a_fleet_whose_file_changes() -> None:
    here = Path(__file__)
    passes(here.with_name("engine_suite.py"), here.with_name("file_systems_suite.py"))
