"""What `orch run` says of each task and dev environment of the reference documents.

`ORCHCTL_TEST_ACCEPT=1` writes the table anew: read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

from kit.reference_runs import verdicts

TABLE = Path(__file__).parent / "reference-runs.expected"


def test_each_task_and_dev_environment_of_the_reference_is_taken_or_refused_as_the_table_says() -> None:
    found = verdicts()
    assert [each.kind for each in found].count("task") == 14
    assert [each.kind for each in found].count("dev-environment") == 1
    table = "".join(f"{each}\n" for each in found)
    if os.environ.get("ORCHCTL_TEST_ACCEPT"):
        TABLE.write_text(table)
    assert table == TABLE.read_text()


def test_each_of_them_finds_a_local_fleet_with_simulated_accelerators_that_it_fits() -> None:
    assert all(each.gpus > 0 for each in verdicts() if each.kind == "task")
