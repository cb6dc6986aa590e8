"""Which passphrase is a stack's own: its salt proves it, as the engine itself checks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.clouds.cloud_engine import quiet
from kit.engine import transit

from orch.stacks.engine.install import require
from orch.stacks.errors import StackError
from orch.stacks.keys.secret_store import SecretStore
from orch.stacks.project.passphrase import (
    VARIABLES,
    former_file,
    is_unfinished,
    key_file,
    new_file,
    not_ours,
    opens,
)
from orch.stacks.project.project import Project, find
from orch.stacks.stack.command import init
from orch.stacks.stack.state import StackState, environment_of
from orch.stacks.states.passphrase_rotation import rotate_passphrase

PASSPHRASE, SALT = "correct horse é", "v1:szwXgI091c8=:v1:QooOatRzCKeRWzWT:hKjhee3lEXwb9w7lch2C/nnWc9O6jw=="
"""A passphrase, and the salt that Pulumi 3.259 made of it."""
TEXT, FILE = VARIABLES


@pytest.mark.quick
def test_a_salt_of_the_engine_proves_its_passphrase_and_no_other_one() -> None:
    assert opens(PASSPHRASE, SALT)
    assert not opens("correct horse e", SALT)
    assert not opens("", SALT)


@pytest.mark.quick
@pytest.mark.parametrize(
    "salt",
    [
        *("", "v1", "v1::v1::", "v1:szwXgI091c8=", f"{SALT}:", f"v2{SALT[2:]}"),
        *(
            SALT.replace(":v1:", ":v2:"),
            SALT[:-4],
            SALT.replace("szwX", "sz X"),
            SALT.replace("QooOatRz", "Q"),
        ),
    ],
)
def test_what_is_no_salt_of_the_engine_proves_nothing(salt: str) -> None:
    assert not opens(PASSPHRASE, salt)


def recorded(path: Path, salt: str | None) -> Project:
    """A project whose stack `one` has this salt."""
    (path / "orch.yml").write_text("project: lab\n")
    project = find(path)
    project.prepare()
    file = project.checkpoint("one")
    assert file is not None
    file.parent.mkdir(parents=True)
    provider = {"secrets_providers": {"type": "passphrase", "state": {"salt": salt}}} if salt else {}
    file.write_text(json.dumps({"checkpoint": {"latest": provider}}))
    return project


@pytest.mark.usefixtures("passphrase", "engine")
def test_while_two_are_there_a_stack_is_opened_with_its_own(tmp_path: Path) -> None:
    project = recorded(tmp_path, SALT)
    engine = require()

    def used() -> str:
        return Path(environment_of(StackState(project, "one"), engine)[FILE]).name

    assert (is_unfinished(project), used()) == (False, "passphrase")
    assert key_file(project, SALT) is None
    for file in (new_file(project), former_file(project)):
        file.write_text(f"{PASSPHRASE}\n")  # the engine leaves white space around it out, too
        assert (is_unfinished(project), used()) == (True, file.name)
        file.unlink()
    former_file(project).write_text("of no stack")
    assert used() == "passphrase"
    error = not_ours(project, "it cannot be opened")
    assert error.code == "ORCH354"
    assert "`orch rotate passphrase` goes on" in (error.hint or "")


@pytest.mark.usefixtures("engine")
def test_a_passphrase_of_the_environment_is_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(transit.URL, "")
    monkeypatch.setenv(TEXT, "given")
    project = recorded(tmp_path, SALT)
    new_file(project).write_text(PASSPHRASE)
    assert FILE not in environment_of(StackState(project, "one"), require())
    assert "PULUMI_CONFIG_PASSPHRASE of this environment" in (not_ours(project, "x").detail or "")


@pytest.mark.usefixtures("passphrase", "engine")
def test_a_rotation_with_the_key_of_another_clone_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (TEXT, FILE):
        monkeypatch.delenv(name, raising=False)
    project = find(tmp_path)
    project.prepare()
    init(StackState(project, "aaa"))
    SecretStore(project).set("token", "geheim", quiet)
    salt, own = StackState(project, "aaa").salt, project.passphrase_file.read_text()
    project.passphrase_file.write_text("of no stack")
    with pytest.raises(StackError) as refused:
        rotate_passphrase(project, None, quiet)
    assert refused.value.code == "ORCH354"
    assert not is_unfinished(project)
    assert StackState(project, "aaa").salt == salt
    project.passphrase_file.write_text(own)
    rotate_passphrase(project, None, quiet)
    assert StackState(project, "aaa").salt != salt
