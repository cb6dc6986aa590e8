"""Settings of an `orch.yml` are changed in its text; all else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.spec.errors import OrchError
from orch.stacks.project.settings_file import change_settings, settings_in, with_settings

TEXT = """# ours
project: demo   # the name
state: 's3://old'  # moved twice
backends:
  - type: aws
    regions: [us-east-1]
ledger: >-
  sqlite:///.orch/ledger.db
"""


def test_a_value_is_replaced_and_all_else_stays() -> None:
    changed = with_settings(TEXT, {"state": "gs://new/place", "project": "lab"})
    assert changed == TEXT.replace("'s3://old'", "gs://new/place").replace("demo", "lab")
    assert with_settings(TEXT, {"state": "s3://old"}).replace("s3://old", "'s3://old'") == TEXT
    assert with_settings(TEXT, {}) == TEXT


def test_one_that_is_not_there_is_added_and_one_is_taken_out() -> None:
    assert with_settings(TEXT, {"secrets_provider": "awskms://alias/x?region=r"}) == (
        f"{TEXT}secrets_provider: awskms://alias/x?region=r\n"
    )
    assert with_settings("a: 1", {"state": "x y: #"}) == 'a: 1\nstate: "x y: #"\n'
    assert with_settings(TEXT, {"state": None, "nothing": None}) == TEXT.replace(
        "state: 's3://old'  # moved twice\n", ""
    )
    assert with_settings("", {"project": "demo"}) == "project: demo\n"


def test_single_values_are_read() -> None:
    assert settings_in(TEXT) == {
        "project": "demo",
        "state": "s3://old",
        "ledger": "sqlite:///.orch/ledger.db",
    }
    assert settings_in("[1, 2]") == {}
    assert settings_in("a: [") == {}


def test_a_file_that_would_not_be_valid_stays(tmp_path: Path) -> None:
    file = tmp_path / "orch.yml"
    with pytest.raises(OrchError) as caught:
        change_settings(tmp_path, {"project": "Not A Name"})
    assert "ORCH115" in caught.value.text()
    assert not file.exists()
    file.write_text("project: demo\n")
    with pytest.raises(OrchError):
        change_settings(tmp_path, {"project": "Not A Name"})
    with pytest.raises(OrchError):
        change_settings(tmp_path, {"ledger": "sqlite:///\udcff"})
    assert file.read_text() == "project: demo\n"
    project, changed = change_settings(tmp_path, {"state": f"file://{tmp_path}/s"})
    assert changed
    assert project.state_url == f"file://{tmp_path}/s"
    assert not change_settings(tmp_path, {"state": f"file://{tmp_path}/s"})[1]
