"""Which project a file belongs to, and what the engine is told for it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orch.rehearsal.project import rehearse
from orch.runner.ledger.ledger import open_ledger
from orch.runner.ledger.run_folder import open_folder
from orch.runner.node.logs import LogFile
from orch.runner.processes import here
from orch.spec.errors import OrchError
from orch.spec.loader.load import InvalidConfiguration
from orch.stacks.engine.install import Engine, fits
from orch.stacks.errors import ProjectError
from orch.stacks.project.lockfile import write_lock
from orch.stacks.project.passphrase import not_ours
from orch.stacks.project.project import Project, find
from orch.stacks.stack.state import work_folder

ENGINE = Engine(Path("/opt/engine/bin/pulumi"), "3.259.0", "PATH")


def test_the_root_is_the_nearest_folder_with_an_orch_yml(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: outer\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project = find(inner / "fleet.yml")
    assert (project.root, project.name) == (tmp_path, "outer")
    (tmp_path / "a" / "orch.yml").write_text("project: inner\n")
    assert find(inner).name == "inner"


def test_without_one_it_is_the_root_of_the_checkout_then_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "repo" / "fleets"
    folder.mkdir(parents=True)
    assert find(folder / "fleet.yml").root == folder
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    assert find(folder / "fleet.yml").root == tmp_path / "repo"


def test_the_folder_gives_the_name_in_a_form_the_engine_takes(tmp_path: Path) -> None:
    odd = tmp_path / "my fleets (2)"
    odd.mkdir()
    assert find(odd).name == "my-fleets-2"


def test_a_renamed_folder_keeps_the_name_its_state_was_begun_under(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    find(before).prepare()
    after = before.rename(tmp_path / "after")
    assert find(after).name == "before"


def test_a_state_elsewhere_needs_a_key_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE", raising=False)
    (tmp_path / "orch.yml").write_text("project: shared\nstate: s3://bucket/orch\n")
    with pytest.raises(ProjectError) as caught:
        find(tmp_path)
    assert caught.value.exit_code == 3
    assert "secrets_provider" in (caught.value.hint or "")
    (tmp_path / "orch.yml").write_text(
        "project: shared\nstate: s3://bucket/orch\nsecrets_provider: awskms://alias/orch\n"
    )
    project = find(tmp_path)
    assert project.local_state is None
    assert "PULUMI_HOME" not in project.environment(ENGINE)


def test_a_relative_state_path_starts_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: near\nstate: file://states\n")
    assert find(tmp_path).local_state == tmp_path / "states"


def test_a_mistake_in_orch_yml_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: near\nstat: file://states\n")
    with pytest.raises(InvalidConfiguration) as caught:
        find(tmp_path)
    assert "orch.yml:2:1" in caught.value.text()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda file: file.symlink_to("/nonexistent"), "there is no such file"),
        (Path.mkdir, "orch.yml is a folder"),
    ],
    ids=["dangling link", "folder"],
)
def test_an_orch_yml_that_is_no_file_is_not_passed_over(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    (tmp_path / "orch.yml").write_text("project: above\n")
    (tmp_path / "below").mkdir()
    make(tmp_path / "below/orch.yml")
    with pytest.raises(OrchError) as refused:
        find(tmp_path / "below")
    assert message in refused.value.text()


def test_the_passphrase_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    project = find(tmp_path)
    project.prepare()
    first = project.passphrase_file.read_text()
    assert stat.S_IMODE(os.stat(project.passphrase_file).st_mode) == 0o600
    project.prepare()
    assert project.passphrase_file.read_text() == first
    assert (project.dot / ".gitignore").read_text() == "*\n"
    assert project.environment(ENGINE)["PULUMI_CONFIG_PASSPHRASE_FILE"] == str(project.passphrase_file)


def open_to_others(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


@pytest.mark.sqlite
def test_all_that_orch_keeps_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        project = find(tmp_path)
        project.prepare()
        work_folder(project, "laptop")
        folder = open_folder(project.dot, "train", 1)
        folder.write_environments([{"TOKEN": "x"}])
        folder.keys(2)
        log = LogFile(folder.log(0))
        log.open()
        log.append(b"a line\n")
        log.close()
        ledger = open_ledger(project.ledger_url)
        ledger.runs()
        assert (project.dot / "ledger.db-wal").exists()
        assert open_to_others(project.dot) == []
        ledger.close()
        rehearsed = rehearse(project).project
        write_lock(rehearsed.lock_file, "p5", {"image": "ami-1"})
        assert open_to_others(project.dot) == []
        # Beside orch.yml it is committed, for all to read.
        tmp_path.chmod(0o755)
        write_lock(project.lock_file, "p5", {"image": "ami-1"})
        assert project.lock_file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_folder_that_a_former_version_left_open_is_closed_with_all_in_it(tmp_path: Path) -> None:
    dot = tmp_path / ".orch"
    (dot / "state" / "backups").mkdir(parents=True)
    (dot / "state" / "backups" / "x.json").write_text("{}")
    (dot / "bin").mkdir()
    (dot / "bin" / "tool").write_text("#!/bin/sh\n")
    (dot / "bin" / "tool").chmod(0o755)
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (dot / "link").symlink_to(outside)
    for folder in (dot, dot / "state", dot / "state" / "backups"):
        folder.chmod(0o755)
    find(tmp_path).prepare()
    assert open_to_others(dot) == []
    assert (dot / "bin" / "tool").stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_closed_to_the_caller_is_told(tmp_path: Path) -> None:
    """As `sudo orch up` leaves it to who called sudo."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "orch.yml").write_text("project: tests\n")
        find(folder).prepare()
        told = tmp_path / "told"
        told.touch()
        told.chmod(0o666)
        with told.open("w") as stream:
            if not (child := os.fork()):
                os.setuid(65534)
                try:
                    find(folder)
                except ProjectError as error:
                    stream.write(error.text())
                    stream.flush()
                os._exit(0)
        os.waitpid(child, 0)
    assert "closed to you" in told.read_text()
    assert f"sudo chown -R $(id -u) {folder / '.orch'}" in told.read_text()


def test_a_state_elsewhere_is_as_open_as_its_user_makes_it(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: near\nstate: file://states\n")
    before = os.umask(0o002)
    try:
        find(tmp_path).prepare()
    finally:
        os.umask(before)
    assert (tmp_path / "states").stat().st_mode & 0o777 == 0o775


@pytest.mark.parametrize(
    ("version", "fit"),
    [
        ("3.259.0", True),
        ("v3.300.1", True),
        ("3.258.9", False),
        ("4.0.0", False),
        ("3.259.0-alpha", True),
        ("?", False),
    ],
)
def test_engines_of_the_known_range_fit(version: str, fit: bool) -> None:
    assert fits(version) is fit


def test_processes_of_one_number_make_one_project_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of two containers that share a folder: here they are threads, which share a number."""
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE", raising=False)
    for turn in range(10):
        (tmp_path / str(turn)).mkdir()
        project = find(tmp_path / str(turn))
        together = threading.Barrier(8)

        def begin(project: Project = project, together: threading.Barrier = together) -> str:
            together.wait()
            project.prepare()
            return project.passphrase_file.read_text()

        with ThreadPoolExecutor(8) as pool:
            seen = [each.result() for each in [pool.submit(begin) for _ in range(8)]]
        assert len(set(seen)) == 1
        assert len(seen[0]) > 40
        assert project.passphrase_file.read_text() == seen[0]
        assert not list(project.dot.glob(".p*"))


def test_what_a_killed_process_left_half_made_becomes_no_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between linking it and removing the other name: the next of that number must not write there."""
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE", raising=False)
    elsewhere = tmp_path / "live"
    elsewhere.write_text("live")
    (tmp_path / ".orch").mkdir()
    os.link(elsewhere, tmp_path / ".orch" / f"passphrase.{os.getpid()}")
    find(tmp_path).prepare()
    assert elsewhere.read_text() == "live"


SERVER = """\
projects:
  - name: main
    backends:
      - type: aws
        regions: [us-east-1]
"""


def test_the_configuration_of_a_dstack_server_is_read_as_orch_yml(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text(SERVER)
    project = find(tmp_path)
    assert (project.name, [each.type for each in project.backends]) == ("main", ["aws"])
    project.prepare()
    (tmp_path / "orch.yml").write_text(
        f"project: lab\n{SERVER}  - name: lab\n    backends: [{{type: local}}]\n"
    )
    project = find(tmp_path)
    assert (project.name, [each.type for each in project.backends]) == ("lab", ["local"])


def test_a_backend_that_cannot_be_used_stops_only_the_project_that_has_it(tmp_path: Path) -> None:
    other = "  - name: lab\n    backends:\n      - {type: oci}\n"
    (tmp_path / "orch.yml").write_text(f"project: main\n{SERVER}{other}")
    assert find(tmp_path).name == "main"
    (tmp_path / "orch.yml").write_text(f"project: lab\n{SERVER}{other}")
    with pytest.raises(InvalidConfiguration) as caught:
        find(tmp_path)
    (wrong,) = caught.value.diagnostics
    assert (wrong.code, wrong.path) == ("ORCH118", "projects[1].backends[0].type")


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("sqlite:///shared/l.db", "{root}/shared/l.db"),
        ("sqlite:///shared/l.db?timeout=5", "{root}/shared/l.db?timeout=5"),
        ("sqlite:////srv/l.db", "/srv/l.db"),
    ],
)
def test_the_path_of_a_ledger_counts_from_the_project_wherever_a_command_is_called(
    written: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orch.yml").write_text(f"ledger: {written}\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    url = f"sqlite:///{path.format(root=tmp_path)}"
    assert find(tmp_path / "sub").ledger_url == find(tmp_path).ledger_url == url
    ledger = find(tmp_path).local_ledger
    assert str(ledger) == path.format(root=tmp_path).partition("?")[0]


def test_a_state_that_others_use_needs_the_projects_name(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("state: file:///srv/orch\n")
    with pytest.raises(OrchError) as caught:
        find(tmp_path)
    assert (
        "orch.yml:1:1: error ORCH113: a state that others use needs the project's name" in caught.value.text()
    )


def test_who_has_the_passphrase_of_a_shared_state_is_told_there(tmp_path: Path) -> None:
    settings = f"project: demo\nstate: file://{tmp_path}/state\n"
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "orch.yml").write_text(settings)
        find(folder).prepare()
    # One that a second clone made would be another one.
    assert (first / ".orch" / "passphrase").exists()
    assert not (second / ".orch" / "passphrase").exists()
    lacking = not_ours(find(second), "preview needs it").text()
    assert f"there is no {second}/.orch/passphrase; {here()} made it, in {first}/.orch/passphrase" in lacking
    assert f"copy that file as {second}/.orch/passphrase" in lacking
    shutil.copy(first / ".orch" / "passphrase", second / ".orch" / "passphrase")
    find(second).prepare()
    assert "is not the passphrase of the state" in not_ours(find(second), "preview needs it").text()
    # Another project's is another one.
    (second / "orch.yml").write_text(settings.replace("demo", "other"))
    (second / ".orch" / "passphrase").unlink()
    find(second).prepare()
    assert (second / ".orch" / "passphrase").exists()


def test_what_the_state_tells_of_its_passphrase_may_be_broken(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text(f"project: demo\nstate: file://{tmp_path}/state\n")
    project = find(tmp_path)
    assert project.keeper_file is not None
    project.keeper_file.parent.mkdir()
    for text in ("", "[1]", "{"):
        project.keeper_file.write_text(text)
        assert "of the folder that began it" in not_ours(project, "preview needs it").text()
    project.prepare()
    assert project.passphrase_file.exists()
