"""What `orch cost` takes as a time."""

from __future__ import annotations

import pytest
from kit.support import Folder


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_time_before_the_first_year_is_no_time(folder: Folder, option: str) -> None:
    said = folder.orch("cost", option, "0001-01-01T00:00:00+14:00")
    assert (said.code, said.out) == (2, "")
    assert f"{option}: '0001-01-01T00:00:00+14:00' is no time of UTC" in said.err
