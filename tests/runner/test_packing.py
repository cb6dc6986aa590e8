"""What a task's `files` take along, and what stays on the submitting machine."""

from __future__ import annotations

import os
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from orch.runner.errors import BadTask
from orch.runner.launch.compile import RunRequest, compile_run
from orch.runner.launch.placement import place_task
from orch.runner.launch.run_plan import RunPlan
from orch.runner.node.stage import pack_files
from orch.spec.models import Task
from orch.spec.state import FleetState, NodeState

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"


def plan(base: Path, *files: str) -> RunPlan:
    node = NodeState(index=0, name="n", address="a", user="root", host_key="k", internal_ip="10.0.0.1")
    fleet = FleetState(name="f", stack="f", backend="local", nodes=(node,))
    task = Task.model_validate({"name": "job", "commands": ["true"], "files": list(files)})
    request = RunRequest(
        task=task, name="job", number=1, fleet=fleet, seats=place_task(task, fleet), image="i", base=base
    )
    return compile_run(request).plan


def packed(base: Path, *files: str) -> tuple[dict[str, tarfile.TarInfo], str]:
    """Members of the archive by the path that a job sees, and all that is said of it."""
    target = base.parent / f"{base.name}.tar"
    told = pack_files(plan(base, *files), target)
    with tarfile.open(target) as archive:
        return {member.name: member for member in archive}, "\n".join(told)


def put(folder: Path, **files: str) -> Path:
    """Files with their texts; `a__b` lies in the folder `a`."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with all that should stay at home."""
    home = put(tmp_path / "work", **{"train.py": "print(1)", "orch.yml": "project: p\n", "src__a.py": ""})
    put(home / ".orch", **{"passphrase": "open", "keys__prod": KEY, "runs__other__environment.json": "[{}]"})
    put(home / "sub" / ".orch", **{"keys__dev": KEY})
    put(home / ".git", config="url = https://user:token@host/repo")
    put(home / "lib", **{".git": "gitdir: ../.git/modules/lib", "b.py": ""})
    return home


def test_a_folder_goes_without_keys_states_and_history(project: Path) -> None:
    members, _ = packed(project, ".")
    assert {"files/0/train.py", "files/0/src/a.py", "files/0/lib/b.py"} <= set(members)
    assert [name for name in members if {".orch", ".git"} & set(Path(name).parts)] == []


@pytest.mark.parametrize("path", [".orch", ".orch/keys", "sub/.orch/keys/dev", "../work/.orch/passphrase"])
def test_what_lies_in_orch_is_not_packed_even_when_it_is_named(project: Path, path: str) -> None:
    with pytest.raises(BadTask, match="never packed"):
        packed(project, path)


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    home = put(
        tmp_path / "w",
        **{
            ".gitignore": "*.ckpt\n/data/\nbuild/\n",
            ".dstackignore": "notes.txt\n",
            ".orchignore": "!keep.ckpt\n",
            "a.ckpt": "",
            "keep.ckpt": "",
            "notes.txt": "",
            "data__x": "",
            "sub__data__y": "",
            "sub__build__z": "",
            "sub__.gitignore": "!b.ckpt\nlocal\n",
            "sub__b.ckpt": "",
            "sub__c.ckpt": "",
            "sub__local": "",
        },
    )
    members, told = packed(home, ".")
    files = {name.removeprefix("files/0/") for name, member in members.items() if member.isreg()}
    kept = {"keep.ckpt", "sub/b.ckpt", "sub/data/y"}
    assert files == {".gitignore", ".dstackignore", ".orchignore", "sub/.gitignore", *kept}
    assert "6 entries stay here" in told


def test_the_choice_is_git_s_own(tmp_path: Path) -> None:
    """Of one tree: what is packed is what `git add` takes."""
    lines = [
        "*.log",
        "!important.log",
        "/out/",
        "cache/",
        "doc/*.txt",
        "**/tmp",
        "a/**/b",
        "\\#odd",
        "x[0-9]",
    ]
    home = put(tmp_path / "w", **{".gitignore": "\n".join(lines)})
    names = (
        "a.log important.log out/f sub/out/f cache/f sub/cache/f doc/n.txt doc/s/n.txt sub/tmp/f a/b a/c/d/b"
    )
    for name in (*names.split(), "#odd", "x1", "xx", "sub/important.log"):
        put(home, **{name.replace("/", "__"): ""})
    for words in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", *words], cwd=home, check=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=home, check=True, capture_output=True, text=True)
    members, _ = packed(home, ".")
    found = {name.removeprefix("files/0/") for name, member in members.items() if member.isreg()}
    assert found == set(listed.stdout.strip("\0").split("\0"))


def test_what_is_named_is_packed_whatever_an_ignore_file_says(tmp_path: Path) -> None:
    home = put(
        tmp_path / "w",
        **{"orch.yml": "", ".gitignore": "data/\n*.bin\n", "data__x": "", "w.bin": "", "src__y.bin": ""},
    )
    assert "files/0/x" in packed(home, "data")[0]
    assert packed(home, "w.bin")[0]["files/0"].isreg()
    assert "files/0/y.bin" not in packed(home, "src")[0]


def test_the_archive_is_its_owner_s_alone(project: Path) -> None:
    packed(project, ".")
    assert (project.parent / "work.tar").stat().st_mode & 0o777 == 0o600


def test_modes_are_kept_and_all_is_readable_on_its_way(tmp_path: Path) -> None:
    home = put(tmp_path / "w", run="", secret="", **{"closed__in": "", "lent": ""})
    for name, mode in (("run", 0o755), ("secret", 0o600), ("closed", 0o700), ("lent", 0o4755)):
        (home / name).chmod(mode)
    members, _ = packed(home, ".")
    shared = {name: member.mode for name, member in members.items()}
    assert shared["files/0/run"] == 0o755
    assert shared["files/0/lent"] == 0o755
    assert shared["files/0.private/secret"] == 0o644
    assert shared["files/0.private/closed/in"] & 0o444 == 0o444
    assert "files/0/secret" not in shared
    assert {(member.uid, member.gid, member.uname) for member in members.values() if member.uname} == {
        (0, 0, "root")
    }


def test_keys_in_a_folder_are_named(tmp_path: Path) -> None:
    home = put(
        tmp_path / "w",
        **{
            ".env": "A=1",
            "deploy": KEY,
            "sub__id_ed25519": KEY,
            "sub__id_ed25519.pub": "ssh-ed25519 AAAA",
            ".env.example": "A=",
            "tls.pem": "-----BEGIN CERTIFICATE-----",
            "sa.json": '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----"}',
            "train.py": "BEGIN = 'PRIVATE KEY'",
        },
    )
    _, told = packed(home, ".")
    (line,) = (line for line in told.splitlines() if "looks like a key" in line)
    for name in (".env", "deploy", "sub/id_ed25519", "tls.pem", "sa.json"):
        assert name in line.split(" looks")[0].split(": ")[1].split(", ")
    assert "5 more" not in line
    assert "train.py" not in told
    assert "looks like" not in packed(home, "deploy")[1]  # whoever names it means it


def test_a_link_out_of_the_folder_is_told_and_not_followed(tmp_path: Path) -> None:
    put(tmp_path, outside="secret text")
    home = put(tmp_path / "w", inside="x")
    (home / "abs").symlink_to(tmp_path / "outside")
    (home / "up").symlink_to("../outside")
    (home / "near").symlink_to("inside")
    members, told = packed(home, ".")
    assert [members[f"files/0/{name}"].issym() for name in ("abs", "up", "near")] == [True] * 3
    assert "abs, up leads out of its folder" in told


@pytest.mark.parametrize("entry", ["link", "link/x", "./link"])
def test_an_entry_that_is_such_a_link_is_refused(tmp_path: Path, entry: str) -> None:
    put(tmp_path / "private", x="secret text")
    home = put(tmp_path / "w", inside="x")
    (home / "link").symlink_to("../private")
    with pytest.raises(BadTask) as caught:
        packed(home, entry)
    assert str(tmp_path / "private") in caught.value.text()
    assert "files/0/x" in packed(home, "../private")[0]  # that is what is meant


def test_pipes_and_sockets_stay_here_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = put(tmp_path / "w", a="x")
    os.mkfifo(home / "pipe")
    monkeypatch.chdir(home)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("sock")
    members, told = packed(home, ".")
    assert {name for name in members if "pipe" in name or "sock" in name} == set()
    assert "pipe, sock is a pipe, a socket or a device" in told
    with pytest.raises(BadTask, match="no file and no folder"):
        packed(home, "pipe")


def test_how_much_is_packed_is_told_in_one_line(tmp_path: Path) -> None:
    home = put(tmp_path / "w", a="x" * 1500, b="")
    assert packed(home, ".")[1] == "note: packed 2 files, 1.5 KB"
    assert packed(home, "b")[1] == "note: packed 1 file, 0 bytes"


@pytest.mark.parametrize("path", [".git", ".git/config", ".GIT/config", "lib/.git", "given", ".git:/there"])
def test_what_git_keeps_is_not_packed_even_when_it_is_named(project: Path, path: str) -> None:
    put(project / ".GIT", config="token")
    (project / "given").symlink_to(".git")
    with pytest.raises(BadTask, match=r"`\.git` and is never packed"):
        packed(project, path)


def test_what_is_only_called_like_git_is_packed(project: Path) -> None:
    put(project, **{".gitignore": "x", ".github__ci.yml": "x"})
    members, _ = packed(project, ".gitignore", ".github")
    assert {"files/0", "files/1/ci.yml"} <= members.keys()


def test_a_folder_that_is_named_keeps_what_other_patterns_leave_out(tmp_path: Path) -> None:
    home = put(tmp_path / "work", **{"orch.yml": "", ".gitignore": "build/\n*.pem\n.env\n/build/x/secret\n"})
    put(home / "build" / "x", **{"a.py": "", "key.pem": "", ".env": "", "secret": "", "y__b.pem": ""})
    for named in ("build", "build/x"):
        members, _ = packed(home, named)
        files = {Path(name).name for name, member in members.items() if member.isfile()}
        assert files == {"a.py"}


def test_a_folder_that_its_owner_may_not_write_takes_private_files_all_the_same(tmp_path: Path) -> None:
    """The job's user copies the private ones into the copied folder: one of mode 0555 would refuse them."""
    home = put(tmp_path / "work", **{"data__key": "k", "data__open": "o"})
    (home / "data" / "key").chmod(0o400)
    (home / "data").chmod(0o555)
    members, _ = packed(home, "data")
    (home / "data").chmod(0o755)
    assert "files/0.private/key" in members
    assert [member.mode & 0o700 for member in members.values() if member.isdir()] == [0o700] * 2
