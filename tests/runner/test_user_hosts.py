"""What orch writes into the user's SSH configuration, beside what the user and others write there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orch.runner.user_hosts import HostNotAdded, add_host, remove_host

Add = Callable[..., Path | None]
OWN = "# mine\nHost other\n  User me\n  Include orch/*\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def add(tmp_path: Path) -> Add:
    def add(name: str, run: str = "run") -> Path | None:
        owner = tmp_path / run / name
        owner.mkdir(parents=True, exist_ok=True)
        return add_host([name, f"{name}-0"], owner, f"Host {name} {name}-0\n  User {run}\n")

    return add


def user_of(home: Path, host: str) -> str:
    """Who `ssh` would log in as."""
    words = ["ssh", "-G", "-F", str(home / ".ssh" / "config"), host]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return next(line.removeprefix("user ") for line in said.splitlines() if line.startswith("user "))


def test_the_users_file_gets_one_line_and_keeps_all_else(home: Path, add: Add) -> None:
    kept = home / "dotfiles"
    kept.write_text(OWN)
    kept.chmod(0o640)
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").symlink_to(kept)
    add("lab")
    add("lab2")
    assert (home / ".ssh" / "config").is_symlink()
    assert kept.read_text() == f"Include {home}/.ssh/orch/*\n\n{OWN}"
    assert kept.stat().st_mode & 0o777 == 0o640
    assert [user_of(home, host) for host in ("lab", "lab-0", "lab2", "other")] == ["run", "run", "run", "me"]


def test_a_host_goes_with_its_run_and_stays_for_another_ones(home: Path, add: Add, tmp_path: Path) -> None:
    assert add("lab") is None
    assert add("lab") is None
    assert add("lab", "later") == tmp_path / "run" / "lab"
    remove_host("lab", tmp_path / "run" / "lab")
    assert user_of(home, "lab") == "later"
    add("gone")
    (tmp_path / "run" / "gone").rmdir()
    remove_host("lab", tmp_path / "later" / "lab")
    assert [file.name for file in (home / ".ssh" / "orch").iterdir()] == [".lock"]


def test_a_host_of_the_users_own_is_left_alone(home: Path, add: Add) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text("Host a lab-0\n")
    with pytest.raises(HostNotAdded, match="has a host lab-0 of its own"):
        add("lab")
    assert (home / ".ssh" / "config").read_text() == "Host a lab-0\n"


def test_files_that_cannot_be_written_are_told(home: Path, add: Add) -> None:
    (home / ".ssh").write_text("")
    with pytest.raises(HostNotAdded, match="cannot be written"):
        add("lab")


def test_many_write_at_once(home: Path, add: Add) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(OWN)
    names = [f"lab{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, names))
    assert (home / ".ssh" / "config").read_text() == f"Include {home}/.ssh/orch/*\n\n{OWN}"
    assert sorted(file.name for file in (home / ".ssh" / "orch").glob("[!.]*")) == sorted(names)
