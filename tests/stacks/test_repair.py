"""Records of stacks that disks and hands have damaged: what is found, and which copy takes their place."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from kit.support import Folder, record_fleet

from orch.stacks.project.project import find
from orch.stacks.stack.state import StackState, settings_file
from orch.stacks.states.repair import damage_of

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


# A passphrase, and two salts that Pulumi 3.259 made of it.
PASSPHRASE = "correct horse é"
OWN = "v1:szwXgI091c8=:v1:QooOatRzCKeRWzWT:hKjhee3lEXwb9w7lch2C/nnWc9O6jw=="
OTHER = OWN.replace("szwX", "szwY")


def copy_with(file: Path, salt: str | None, age_s: float) -> None:
    """A copy of a state, so many seconds old."""
    whole = json.loads(file.with_name("one.json").read_text())
    if salt is not None:
        whole["checkpoint"]["latest"]["secrets_providers"] = {"type": "passphrase", "state": {"salt": salt}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(whole))
    moment = time.time() - age_s
    os.utime(file, (moment, moment))


@pytest.mark.parametrize(
    ("settings", "later"),
    [
        pytest.param(OWN, None, id="the settings have its salt, the later one has none"),
        pytest.param(OWN, OTHER, id="the settings have its salt, the later one has another"),
        pytest.param(OTHER, None, id="the passphrase proves it, the later one has none"),
    ],
)
def test_a_copy_whose_key_is_here_is_preferred_to_a_later_one(
    folder: Folder, settings: str, later: str | None
) -> None:
    stack = StackState(find(folder.path), "one")
    stack.project.passphrase_file.write_text(PASSPHRASE)
    settings_file(stack.project, "one").parent.mkdir(parents=True, exist_ok=True)
    settings_file(stack.project, "one").write_text(f"encryptionsalt: {settings}\n")
    file = stack.project.checkpoint("one")
    assert file is not None
    root = file.parents[2] / "backups" / "lab" / "one"
    root.mkdir(parents=True)
    shutil.copy(file, root / "one.json")
    copy_with(root / "one.1.json", OWN, 100)
    copy_with(root / "one.2.json", later, 10)
    file.write_text("{")
    damage = damage_of(StackState(stack.project, "one"))
    assert damage.copy is not None
    assert damage.copy.file.name == "one.1.json"
