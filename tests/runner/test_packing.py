"""What a task's `files` take along, and what stays on the submitting machine."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from orch.runner.errors import BadTask, RunFailed
from orch.runner.launch.compile import compile_run
from orch.runner.launch.files import Source
from orch.runner.launch.run_request import RunRequest
from orch.runner.placement.placement import place_task
from orch.runner.plan.run_plan import RunPlan
from orch.runner.upload import snapshot
from orch.runner.upload.selection import select_entries
from orch.runner.upload.snapshot import Snapshots, keep_files
from orch.runner.upload.tree import Tree, TreeEntry, delta, nearest
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


def packed(base: Path, *files: str) -> tuple[dict[str, TreeEntry], str]:
    """Entries of the trees by the path that a job sees, and all that is said of them."""
    dot = base.parent / f"{base.name}.orch"
    made, told = keep_files(dot, plan(base, *files))
    entries: dict[str, TreeEntry] = {}
    for index, file in enumerate(made.files):
        tree = Snapshots(dot).tree(file.tree)
        assert tree is not None
        for entry in tree.entries:
            entries[f"{index}/{entry.place}" if file.folder else f"{index}"] = entry
    return entries, "\n".join(told)


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
    assert {"0/open/train.py", "0/open/src/a.py", "0/open/lib/b.py"} <= set(members)
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
    files = {name.removeprefix("0/open/") for name, member in members.items() if member.kind == "file"}
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
    found = {name.removeprefix("0/open/") for name, member in members.items() if member.kind == "file"}
    assert found == set(listed.stdout.strip("\0").split("\0"))


def test_what_is_named_is_packed_whatever_an_ignore_file_says(tmp_path: Path) -> None:
    home = put(
        tmp_path / "w",
        **{"orch.yml": "", ".gitignore": "data/\n*.bin\n", "data__x": "", "w.bin": "", "src__y.bin": ""},
    )
    assert "0/open/x" in packed(home, "data")[0]
    assert packed(home, "w.bin")[0]["0"].kind == "file"
    assert "0/open/y.bin" not in packed(home, "src")[0]


def test_what_is_kept_of_a_run_is_its_owner_s_alone(project: Path) -> None:
    packed(project, ".")
    kept = list((project.parent / "work.orch").rglob("*"))
    assert {path.suffix for path in kept if path.is_file()} == {".db", ".pack"}
    assert {path.stat().st_mode & 0o077 for path in kept} == {0}


def test_modes_are_kept_and_all_is_readable_on_its_way(tmp_path: Path) -> None:
    home = put(tmp_path / "w", run="", secret="", **{"closed__in": "", "lent": ""})
    for name, mode in (("run", 0o755), ("secret", 0o600), ("closed", 0o700), ("lent", 0o4755)):
        (home / name).chmod(mode)
    members, _ = packed(home, ".")
    shared = {name: member.mode for name, member in members.items()}
    assert shared["0/open/run"] == 0o755
    assert shared["0/open/lent"] == 0o755
    assert shared["0/private/secret"] == 0o644
    assert shared["0/private/closed/in"] & 0o444 == 0o444
    assert "0/open/secret" not in shared


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
            "sort.key": "name,age",
            "store.p12": "",
            "sa.json": '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----"}',
            "train.py": "BEGIN = 'PRIVATE KEY'",
        },
    )
    # The key files in DER as `openssl` writes them: PKCS #8, PKCS #1, RFC 5915.
    for number, start in enumerate(("308204be020100300d", "308204a40201000282", "30770201010420")):
        (home / f"{number}.der").write_bytes(bytes.fromhex(start) + bytes(100))
    (home / "certificate.der").write_bytes(bytes.fromhex("308203353082021d") + bytes(100))
    _, told = packed(home, ".")
    (line,) = (line for line in told.splitlines() if "looks like a key" in line)
    named = line.split(" looks")[0].split(": ")[1].replace(" and", ",").split(", ")
    assert named == [".env", "0.der", "1.der", "2.der", "deploy", "3 more"]
    for name in ("0.der", "1.der", "2.der"):
        (home / name).unlink()
    (line,) = (line for line in packed(home, ".")[1].splitlines() if "looks like a key" in line)
    named = line.split(" looks")[0].split(": ")[1].split(", ")
    assert named == [".env", "deploy", "sa.json", "store.p12", "sub/id_ed25519"]
    assert "looks like" not in packed(home, "deploy")[1]  # whoever names it means it


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_kept(tmp_path: Path) -> None:
    put(tmp_path, outside="secret text")
    home = put(tmp_path / "w", inside="x", sub__y="")
    (home / "near").symlink_to("inside")
    (home / "sub" / "back").symlink_to("../inside")
    members, _ = packed(home, ".")
    links = {name: entry.content for name, entry in members.items() if entry.kind == "link"}
    assert links == {"0/open/near": "inside", "0/open/sub/back": "../inside"}
    (home / "abs").symlink_to(tmp_path / "outside")
    (home / "up").symlink_to("../outside")
    with pytest.raises(BadTask) as caught:
        packed(home, ".")
    assert "abs, up in" in caught.value.summary
    assert ".orchignore" in caught.value.text()
    put(home, **{".orchignore": "/abs\n/up\n"})
    assert "0/open/near" in packed(home, ".")[0]


def test_a_pattern_takes_what_it_matches_with_the_folders_on_the_way(tmp_path: Path) -> None:
    home = put(tmp_path / "w", **{"src/one.py": "", "src/two.txt": "", "src/deep/three.py": ""})
    put(home, **{"orch.yml": "", ".gitignore": "left.py\n", "src/left.py": "", "src/empty/x": ""})
    assert set(packed(home, "src/*.py")[0]) == {"0/open/one.py"}
    every, told = packed(home, "src/**/*.py:there", "src/d*")
    assert {name for name in every if name[0] == "0"} == {
        "0/open/one.py",
        "0/open/deep",
        "0/open/deep/three.py",
    }
    assert {name for name in every if name[0] == "1"} == {"1/open/deep", "1/open/deep/three.py"}
    assert told == "note: packed 3 files, 0 bytes"
    assert [file.target for file in plan(home, "src/*.py", "src/*.py:there", "*.txt").files] == [
        *("src", "there", "."),
    ]
    with pytest.raises(BadTask, match=r"nothing in .*src matches \*\.rs"):
        packed(home, "src/*.rs")
    put(home, **{"odd[1].txt": "x"})
    assert packed(home, "odd[1].txt")[0]["0"].kind == "file"  # what is there is no pattern


def test_only_what_changed_is_read_again_and_the_same_content_has_the_same_name(tmp_path: Path) -> None:
    home = put(tmp_path / "w", a="one", b="two", c="two")
    for name in "abc":
        os.utime(home / name, (1, 1))
    dot = tmp_path / ".orch"
    first = keep_files(dot, plan(home, "."))[0].files[0].tree
    (pack,) = (dot / "uploads").glob("*.pack")
    assert pack.read_bytes() == b"onetwo"  # each content once
    assert keep_files(dot, plan(home, "."))[0].files[0].tree == first
    assert list((dot / "uploads").glob("*.pack")) == [pack]
    put(home, a="new")
    second = keep_files(dot, plan(home, "."))[0].files[0].tree
    assert second != first
    put(home, a="one")
    assert keep_files(dot, plan(home, "."))[0].files[0].tree == first
    old, new = Snapshots(dot).tree(first), Snapshots(dot).tree(second)
    assert old is not None
    assert new is not None
    change = delta(new, nearest(new, [old]))
    assert [entry.place for entry in change.add] == ["open/a"]
    assert change.drop == ("open/a",)


def test_a_file_that_became_a_folder_is_removed_before_what_the_folder_holds(tmp_path: Path) -> None:
    home = put(tmp_path / "w", a="one", gone__x="", stays__y="")
    dot = tmp_path / ".orch"
    trees = [keep_files(dot, plan(home, "."))[0].files[0].tree]
    (home / "a").unlink()
    put(home, a__b="two", stays__z="")
    (home / "gone" / "x").unlink()
    (home / "gone").rmdir()
    (home / "stays").chmod(0o777)
    trees.append(keep_files(dot, plan(home, "."))[0].files[0].tree)
    old, new = (Snapshots(dot).tree(each) for each in trees)
    assert new is not None
    change = delta(new, old)
    assert set(change.drop) == {"open/a", "open/gone", "open/gone/x"}
    added = {"open/a": "folder", "open/a/b": "file", "open/stays": "folder", "open/stays/z": "file"}
    assert {entry.place: entry.kind for entry in change.add} == added


def test_much_is_told_of(tmp_path: Path) -> None:
    home = put(tmp_path / "w")
    home.mkdir()
    with (home / "data").open("wb") as file:
        file.truncate(201_000_000)
    told = packed(home, ".")[1].splitlines()
    assert told[0] == "note: packed 1 file, 201.0 MB"
    assert told[1].startswith("note: 201.0 MB go to every node, only once")


@pytest.mark.parametrize("entry", ["link", "link/x", "./link"])
def test_an_entry_that_is_such_a_link_is_refused(tmp_path: Path, entry: str) -> None:
    put(tmp_path / "private", x="secret text")
    home = put(tmp_path / "w", inside="x")
    (home / "link").symlink_to("../private")
    with pytest.raises(BadTask) as caught:
        packed(home, entry)
    assert str(tmp_path / "private") in caught.value.text()
    assert "0/open/x" in packed(home, "../private")[0]  # that is what is meant


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
    assert {"0", "1/open/ci.yml"} <= members.keys()


def test_a_folder_that_is_named_keeps_what_other_patterns_leave_out(tmp_path: Path) -> None:
    home = put(tmp_path / "work", **{"orch.yml": "", ".gitignore": "build/\n*.pem\n.env\n/build/x/secret\n"})
    put(home / "build" / "x", **{"a.py": "", "key.pem": "", ".env": "", "secret": "", "y__b.pem": ""})
    for named in ("build", "build/x"):
        members, _ = packed(home, named)
        files = {Path(name).name for name, member in members.items() if member.kind == "file"}
        assert files == {"a.py"}


def test_a_folder_that_its_owner_may_not_write_takes_private_files_all_the_same(tmp_path: Path) -> None:
    """The job's user copies the private ones into the copied folder: one of mode 0555 would refuse them."""
    home = put(tmp_path / "work", **{"data__key": "k", "data__open": "o"})
    (home / "data" / "key").chmod(0o400)
    (home / "data").chmod(0o555)
    members, _ = packed(home, "data")
    (home / "data").chmod(0o755)
    assert "0/private/key" in members


def test_what_a_run_still_needs_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEPT", 0)
    snapshots, trees = Snapshots(tmp_path / ".orch"), list[Tree]()
    for name in ("needed", "unused", "new"):
        (tmp_path / name).write_text(name)
        if name == "new":
            with closing(sqlite3.connect(tmp_path / ".orch/uploads/index.db")) as db, db:
                for table in ("pack", "tree", "seen"):
                    db.execute(f"update {table} set used_at = 0")
            snapshots.use([trees[0].id, "none"])
        trees.append(snapshots.keep(select_entries(Source(tmp_path / name)).entries).tree)
    assert [snapshots.tree(each.id) is not None for each in trees] == [True, False, True]
    snapshots.reader(trees[0].entries).close()
    with pytest.raises(RunFailed, match="cannot be sent"):
        snapshots.reader(trees[1].entries)
