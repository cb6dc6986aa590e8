"""A secret that stands in a file is told of, and not told."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.spec.diagnostics import render_human, render_json
from orch.spec.loader.load import load_paths

PLACES = {
    "a registry": ("task.yml", "type: task\nimage: x\nregistry_auth:\n  username: u\n  password: {}\n"),
    "on one line": ("t.yml", "type: task\nimage: x\nregistry_auth: {{username: u, password: {}}}\n"),
    "a cloud": (
        "orch.yml",
        "backends:\n- type: aws\n  creds:\n    type: access_key\n    access_key: AKIA1\n    secret_key: {}\n",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_in_plain_text_is_pointed_at_without_its_line(tmp_path: Path, place: str) -> None:
    name, text = PLACES[place]
    (tmp_path / name).write_text(text.format("canary42"))
    found = load_paths([tmp_path / name]).diagnostics
    assert "ORCH132" in {each.code for each in found}
    assert "canary42" not in render_human(found) + render_json(found)
