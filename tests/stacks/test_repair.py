"""Records of stacks that disks and hands have damaged: what is found, and which copy takes their place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import Folder, record_fleet

from orch.stacks.project import find
from orch.stacks.state import StackState
from orch.stacks.team.repair import damage_of

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "orch.yml").write_text("project: lab\n")
    made = Folder(tmp_path)
    record_fleet(made, "one")
    return made


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (b'{"checkpoint": ', "Expecting value"),
        (b"\xef\x00", "'utf-8' codec can't decode"),
        (b"null", "it is JSON, and no state of the engine"),
        (b"[]", "it is JSON, and no state of the engine"),
        (b'{"checkpoint": {"latest": {"resources": "x"}}}', "it is JSON, and no state of the engine"),
        (b'{"checkpoint": {"latest": {"resources": [1]}}}', "it is JSON, and no state of the engine"),
        (b'{"checkpoint": {"latest": {"resources": [{}]}}}', "it is JSON, and no state of the engine"),
    ],
)
def test_what_is_no_state_is_replaced_by_its_copy(folder: Folder, record: bytes, told: str) -> None:
    stack = StackState(find(folder.path), "one")
    file = stack.project.checkpoint("one")
    assert file is not None
    assert damage_of(stack).copy is None
    shutil.copy(file, file.with_name("one.json.bak"))
    file.write_bytes(record)
    damage = damage_of(StackState(stack.project, "one"))
    assert damage.copy is not None
    assert damage.copy.file.name == "one.json.bak"
    assert f"the state file cannot be read: {told}" in damage.found[0]
