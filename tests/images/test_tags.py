"""Names of images: what they depend on, and that nothing is built twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from orch.images import ImageError, is_ours, names, resolve, tag
from orch.images.base import parse_targets

TARGETS = """\
Debian|http://mirror.test/debian/|trixie|main
Debian|http://mirror.test/debian/|trixie-updates|main
Debian|http://mirror.test/security/|trixie-security|main
Debian|http://mirror.test/debian/|trixie|contrib
Debian|cdrom://disc/|trixie|main
Debian|http://mirror.test/debian/|trixie-backports|main
Somebody|http://packages.test/|trixie|main
"""


def copy_of(name: str, to: Path) -> Path:
    return Path(shutil.copytree(Path(str(files("orch.images"))) / name, to / name))


@pytest.mark.parametrize("name", names())
def test_a_tag_is_a_name_and_twelve_hex_digits(name: str) -> None:
    prefix, _, digest = tag(name).partition(":")
    assert prefix == f"orch/{name}"
    assert len(digest) == 12
    assert int(digest, 16) >= 0


@pytest.mark.parametrize("name", names())
def test_the_same_files_elsewhere_have_the_same_tag(name: str, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    for file in folder.iterdir():
        file.chmod(0o755)
    assert tag(name, folder) == tag(name)


def test_a_changed_byte_changes_the_tag(tmp_path: Path) -> None:
    folder = copy_of("node", tmp_path)
    entry = folder / "node-entry.sh"
    entry.write_bytes(entry.read_bytes() + b"\n")
    assert tag("node", folder) != tag("node")


def test_a_renamed_file_changes_the_tag(tmp_path: Path) -> None:
    folder = copy_of("node", tmp_path)
    (folder / "sshd_config").rename(folder / "sshd_config2")
    assert tag("node", folder) != tag("node")


def test_a_better_readme_does_not_change_the_tag(tmp_path: Path) -> None:
    folder = copy_of("node", tmp_path)
    (folder / "README.md").write_text("other words")
    assert tag("node", folder) == tag("node")


def test_our_names_resolve_to_full_tags_and_others_stay() -> None:
    assert resolve("orch/job") == tag("job")
    assert resolve("orch/job:0123456789ab") == "orch/job:0123456789ab"
    assert resolve("pytorch/pytorch:2.9") == "pytorch/pytorch:2.9"
    assert is_ours("orch/mpi")
    assert not is_ours("debian:bookworm-slim")


def test_an_unknown_image_of_ours_is_told_with_the_known_ones() -> None:
    with pytest.raises(ImageError) as caught:
        resolve("orch/jobb")
    assert "orch/jobb" in caught.value.summary
    assert "orch/job, orch/mpi" in (caught.value.hint or "")


def test_the_base_folder_is_no_image() -> None:
    with pytest.raises(ImageError):
        tag("base")


def test_the_mirrors_of_another_debian_release_serve_for_ours() -> None:
    assert parse_targets(TARGETS) == (
        "http://mirror.test/debian bookworm",
        "http://mirror.test/debian bookworm-updates",
        "http://mirror.test/security bookworm-security",
    )


def test_a_machine_with_another_distribution_names_no_mirror() -> None:
    assert parse_targets("Ubuntu|http://mirror.test/ubuntu/|noble|main\n") == ()
    assert parse_targets("") == ()


def test_without_a_docker_command_the_error_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orch.images", "mpi"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "`docker` command is not installed" in done.stderr
    assert "what to do: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_daemon_that_does_not_answer_is_told() -> None:

    done = subprocess.run(
        [sys.executable, "-m", "orch.images", "mpi"],
        env={**os.environ, "DOCKER_HOST": "tcp://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
