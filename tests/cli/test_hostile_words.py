"""Every word that a command line takes, with what shells and terminals take amiss: told or taken as it is.

Generated from the verbs: a word that is added is tried here at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.cli import errors
from orch.cli.verbs import VERBS, commands, load
from orch.spec.errors import ExitCode

HOSTILE = (
    "x'; canary; '\"; canary; \"$(canary)`canary`; canary #",
    "$(canary)",
    "-oProxyCommand=canary",
    "x\ncanary",
    "x\x1b[2J\x1b]0;canary\x07",
    "x\u202e\u2028canary",
    "../../../etc/passwd",
    "/proc/self/environ",
    "canary=" + "x" * 10_000,
    "{{ canary }}${{ env.PATH }}",
    "",
    "\udcff",
)
FLEET = """\
type: fleet
name: lab
ssh_config: {user: nobody, port: 1, connect_timeout: 1s, known_hosts: known, hosts: [127.0.0.2]}
"""
# What the other words of a command line are while one is tried.
OTHERS = {"file": "fleet.yml", "target": "fleet.yml", "name": "lab", "folder": ".", "command": "true"}
# They make an engine, and ask a cloud for what its regions have.
APART = ("engine install", "offers refresh")


Tried = tuple[str, tuple[str | None, ...], str]


def words() -> Iterator[Tried]:
    """A verb, its arguments (None: the one that is tried), and the option that is tried instead, or ""."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[Tried]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))
        if " ".join(path) in APART:
            return
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        needed = [each for each in arguments if each.required]
        for tried in command.params:
            if tried in arguments:
                given = [*needed, *(() if tried in needed else (tried,))]
                yield (
                    " ".join(path),
                    tuple(None if each is tried else OTHERS.get(each.name, "x") for each in given),
                    "",
                )
            elif not tried.is_flag:
                yield " ".join(path), tuple(OTHERS.get(each.name, "x") for each in needed), tried.opts[-1]

    for verb in VERBS:
        yield from walk(load(verb.name), (verb.name,))


@pytest.mark.parametrize("tried", [pytest.param(each, id=f"{each[0]} {each[2]}".strip()) for each in words()])
def test_a_hostile_word_is_told_or_taken_as_it_is(
    tried: Tried,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    verb, arguments, option = tried
    # So deep that three folders up are still the test's.
    project, ran = tmp_path / "a/b/project", tmp_path / "ran"
    for folder in (project, tmp_path / "bin"):
        folder.mkdir(parents=True)
    (project / "fleet.yml").write_text(FLEET)
    (project / "known").write_text("")
    (tmp_path / "bin/canary").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (tmp_path / "bin/canary").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(project)
    (tmp_path / "etc").mkdir()  # the same for all verbs: `init` makes it
    before = {path.name for path in tmp_path.iterdir()}
    for text in HOSTILE:
        dashes = ["--"] if not option and text.startswith("-") else []
        given = [*([option, text] if option else []), *dashes]
        given += [text if each is None else each for each in arguments]
        with pytest.raises(SystemExit) as ended:
            errors.run(lambda: commands()([*verb.split(), *given], standalone_mode=False))  # noqa: B023
        said = capfd.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        assert code in {int(each) for each in ExitCode} - {int(ExitCode.BUG)}, (text, said.err)
        assert "Traceback" not in said.err
        assert "\x1b[2J" not in said.err + said.out
        assert "\u202e" not in said.err + said.out
        assert not ran.exists(), text
    assert {path.name for path in tmp_path.iterdir()} == before
