"""The command line itself: every verb explains itself, every mistake has an exit code of the table."""

from __future__ import annotations

import errno
import re
import subprocess
from pathlib import Path

import pytest
from kit.support import ORCH, ROOT, Folder, verbs

from orch import __version__
from orch.cli.errors import run
from orch.stacks.project.project import find


@pytest.mark.parametrize("verb", verbs(), ids=" ".join)
def test_every_verb_has_help_and_all_but_aliases_an_example(tmp_path: Path, verb: tuple[str, ...]) -> None:
    said = Folder(tmp_path).orch(*verb, "--help")
    assert said.code == 0, said.err
    assert "Usage: orch" in said.out
    assert "Example: " in said.out or verb == ("plan",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["preview"], "Missing argument 'FILE'"),
        (["up", "a.yml", "--nosuch"], "--nosuch"),
        (["fleet", "nosuch"], "nosuch"),
    ],
)
def test_a_wrong_command_line_is_2_with_a_hint_and_no_trace(
    tmp_path: Path, words: list[str], told: str
) -> None:
    said = Folder(tmp_path).orch(*words)
    assert said.code == 2
    assert told in said.err
    assert "--help` shows" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("verb", ["preview", "up", "down", "drift", "run", "validate"])
def test_a_missing_file_is_an_error_of_the_configuration(tmp_path: Path, verb: str) -> None:
    said = Folder(tmp_path).orch(verb, "nosuch.yml", *(["--yes"] if verb in ("up", "down") else []))
    assert said.code == 3
    assert "nosuch.yml:1:1: error ORCH100" in said.err


def test_doctor_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("doctor", env={"PATH": "/nonexistent", "ORCHCTL_ENGINE_HOME": str(tmp_path)})
    assert said.code == 5
    assert "fail engine" in said.out
    assert "orch engine install" in said.out
    assert "fail docker-cli" in said.out


def test_the_reference_names_every_verb_and_exit_code() -> None:
    text = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    for verb in {verb[0] for verb in verbs()}:
        assert re.search(rf"`{verb}\b", text), verb


def test_the_readme_shows_the_two_commands_and_the_examples_as_they_are() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    for name in ("fleet.yml", "train.yml"):
        body = [
            line
            for line in (ROOT / "examples" / "quickstart" / name).read_text().splitlines()
            if not line.startswith("#")
        ]
        assert "\n".join(body).strip() in text, name


def test_the_way_by_hand_that_init_tells_names_the_stack(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("init", "infra")
    assert said.code == 0, said.err
    assert 'eval "$(orch engine env)" && pulumi preview --stack NAME' in said.err


@pytest.mark.parametrize(
    ("folder", "name"),
    [("infra", "infra"), ("My_Project", "my-project"), ("2026", "orch"), ("a" * 60, "a" * 41)],
)
def test_a_folder_of_any_name_can_be_made_a_project(tmp_path: Path, folder: str, name: str) -> None:
    said = Folder(tmp_path).orch("init", folder)
    assert said.code == 0, said.err
    assert (tmp_path / folder / "orch.yml").read_text() == f"project: {name}\n"


def test_a_folder_whose_state_was_begun_under_its_own_name_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "My_Project"
    (folder / ".orch").mkdir(parents=True, mode=0o700)
    (folder / ".orch" / "project").write_text("My_Project\n")
    assert Folder(tmp_path).orch("init", "My_Project").code == 0
    assert find(folder).name == "My_Project"


def test_it_tells_its_version(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("--version")
    assert (said.code, said.out) == (0, f"orch {__version__}\n")


@pytest.mark.parametrize(
    "words", [(), ("up",), ("fleet",), ("fleet", "show"), ("engine", "env")], ids=" ".join
)
def test_the_short_option_for_help_is_taken_everywhere(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = Folder(tmp_path)
    short, long = folder.orch(*words, "-h"), folder.orch(*words, "--help")
    assert (short.code, short.out) == (0, long.out)
    assert "Usage: orch" in short.out


def test_an_input_that_is_closed_is_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" rotate passphrase <&-', *ORCH],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert closed.returncode == 2, closed.stderr
    assert "hint: write `orch rotate passphrase --yes`" in closed.stderr


def test_a_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/x")

    with pytest.raises(SystemExit) as ended:
        run(full)
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith(
        "/var/x: error: nothing can be written: No space left on device\n"
    )
