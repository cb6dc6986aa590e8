"""Wrong inputs of runs that nodes, remotes or this machine tell: what is said, the exit code, what stays.

Those that a file alone tells are in tests/cli/test_wrong_tasks.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing

import pytest
from kit.nodes.labmachine import docker
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, at_work, containers

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.timeout(900)]

FLEET = """
type: fleet
name: wrong
placement: cluster
nodes: 2
blocks: 8
resources: {gpu: "H100:8"}
"""
TASK = "type: task\nname: wrong-task\nimage: orch/mpi\ncommands: ['true']\n"
OTHER_IMAGE = "type: task\nname: wrong-task\ncommands: ['true']\nimage: "
FOREIGN = "foreign.test/app:1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path = tmp_path_factory.mktemp("wrong")
    backend = f"{{type: local, node_image: '{stocked('mpi')}', simulate_gpu: 'H100:8'}}"
    (path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    folder = Folder(path)
    folder.write("fleet.yml", FLEET)
    said = folder.orch("up", "fleet.yml", "--yes", timeout=600)
    assert said.code == 0, said.err
    yield folder
    assert folder.orch("down", "fleet.yml", "--yes").code == 0


def on_nodes(folder: Folder, script: str, data: bytes | None = None) -> list[str]:
    names = sorted(containers(folder, "wrong"))
    return [docker("exec", "-i", name, "sh", "-c", script, data=data) for name in names]


def traces(folder: Folder) -> tuple[list[str], list[str], list[int]]:
    """What runs and copies may leave: on the nodes, in the project's folder, at work here."""
    look = (
        "docker ps -aq; cd /var/lib/orch && ls -A runs control claims volume-users 2>/dev/null | grep -v : ; "
    )
    look += "ls -d /dev/shm/orch-* /tmp/orch* /root/.docker 2>/dev/null; ls -A /tmp /root; true"
    here = [
        str(path.relative_to(folder.path))
        for path in folder.path.rglob("*")
        if re.search(r"\.orch-cp-|\.partial|\.new$|\.tmp$|staged", path.name)
    ]
    return on_nodes(folder, look), here, at_work(folder.path, "orch")


@pytest.fixture
def place(lab: Folder) -> Iterator[Folder]:
    """The project; what a wrong input leaves is what was there before it."""
    before, files = traces(lab), set(lab.path.iterdir())
    yield lab
    for path in set(lab.path.iterdir()) - files:
        subprocess.run(["rm", "-rf", str(path)], check=True)
    assert traces(lab) == before


def run(folder: Folder, text: str, *words: str, env: dict[str, str] | None = None) -> Said:
    folder.write("task.yml", text)
    said = folder.orch("run", "task.yml", *words, env=env)
    assert "Traceback" not in said.err
    return said


def runs(folder: Folder) -> list[str]:
    return [row["run"] for row in folder.orch("ps", "-a", "--json").json["runs"]]


@pytest.mark.parametrize(
    ("text", "first", "why", "hint"),
    [
        (
            TASK + "instances: [gpu-9]\n",
            "task.yml:5:13: error ORCH246: no fleet here has a node 'gpu-9'",
            "wrong: wrong-[0-1]",
            "name a node that `orch fleet` lists",
        ),
        (
            TASK + "nodes: 2\nexclude_nodes: [wrong-1]\n",
            "task.yml:6:16: error ORCH245: fleet wrong does not fit this task",
            "`exclude_nodes` leaves out wrong-1",
            "change `exclude_nodes` of the task",
        ),
        (
            TASK + "resources: {gpu: 16}\n",
            "task.yml:5:18: error ORCH245: fleet wrong does not fit this task",
            "node wrong-0 has 8 GPUs, the task asks for 16",
            "change `resources.gpu` of the task",
        ),
        (
            TASK + "fleets: [wrogn]\n",
            "task.yml:5:10: error ORCH353: no fleet named wrogn is provisioned here",
            "provisioned: wrong",
            "did you mean 'wrong'?",
        ),
        (
            TASK + f"env: [A=1, 'BIG={'x' * (1 << 17)}']\n",
            "task.yml:5:12: error ORCH421: the variable BIG is too large: 131,076 bytes with its name, "
            "a process can have 131,071",
            "",
            "send that with `files`",
        ),
        (
            TASK + "volumes: ['nodata:/data']\n",
            "task.yml:5:11: error ORCH268: the volume nodata is not up in this project",
            "up here: none",
            "`orch up volume.yml`",
        ),
        (
            TASK + "volumes: ['/a:/data-${{ orch.node_rank }}', '/b:/data-0']\n",
            "task.yml:5:45: error ORCH153: /data-0 is mounted twice, by `volumes[0]` and `volumes[1]`",
            "",
            "its own path",
        ),
        (
            TASK + "files: [fleet.yml, nothing.txt]\n",
            "task.yml:5:20: error: {folder}/nothing.txt is not here",
            "",
            "beside the file that names them",
        ),
        (
            TASK + "files: [linked]\n",
            "task.yml:5:9: error: out in {folder}/linked leads out of that folder",
            "it would lead to something else",
            "name it in .orchignore",
        ),
        (
            TASK + "repos: [.]\n",
            "task.yml:5:9: error: {folder} is not in a Git repository",
            "",
            "`git init` it and commit",
        ),
        (
            TASK + "repos: [{{url: 'file://{folder}/remote', branch: nope}}]\n",
            "task.yml:5:9: error: the repository file://{folder}/remote has no branch or commit nope",
            "",
            "is it pushed",
        ),
        (
            OTHER_IMAGE + "orch/nothing\n",
            "task.yml:4:8: error: there is no image orch/nothing",
            "",
            "known: orch/node, orch/job",
        ),
    ],
    ids=[
        *("unknown-node", "too-few-nodes", "too-many-gpus", "unknown-fleet", "large-variable"),
        *("volume-not-up", "mounted-twice"),
        *("no-file", "link-out", "no-repository", "no-branch", "no-image-of-ours"),
    ],
)
def test_a_task_that_cannot_be_submitted_is_refused_at_its_property(
    place: Folder, text: str, first: str, why: str, hint: str
) -> None:
    (place.path / "linked").mkdir()
    (place.path / "linked" / "out").symlink_to("../..")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q", "-b", "main", str(place.path / "remote")], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], cwd=place.path / "remote", check=True)
    if "{folder}" in text:
        text = text.format(folder=place.path)
    before = runs(place)
    said = run(place, text)
    assert said.code == 3, said.err
    assert said.err.splitlines()[0] == first.format(folder=place.path)
    assert why in said.err
    assert hint in said.err.partition("hint: ")[2]
    assert runs(place) == before


def test_a_private_repository_whose_server_takes_no_key_is_told(place: Folder) -> None:
    node = sorted(containers(place, "wrong"))[0]
    port = docker("port", node, "22").splitlines()[0].rpartition(":")[2]
    options = (
        "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    )
    env = {"GIT_SSH_COMMAND": f"ssh -F none -i /dev/null {options}", "SSH_AUTH_SOCK": ""}
    url = f"ssh://git@127.0.0.1:{port}/team/private.git"
    said = run(place, TASK + f"repos: ['{url}']\n", env=env)
    assert said.code == 3
    assert said.err.splitlines()[0] == f"task.yml:5:9: error: the repository {url} refuses you"
    assert "Permission denied (publickey)" in said.err
    assert "add your key to the SSH agent" in said.err


def test_a_port_of_this_machine_that_is_taken_is_told_at_its_place(place: Folder) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        said = run(place, TASK + f"ports: ['{port}:80']\n")
    assert said.code == 9
    assert said.err.splitlines()[0] == f"task.yml:5:9: error: port {port} of this machine is taken"
    assert '`"*:80"` takes any free port' in said.err


def foreign_image() -> bytes:
    """An image of another architecture as `docker load` takes it: a shell with the head of an ARM program."""
    elf = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0\xb7\0\x01\0\0\0" + bytes(240)
    layer = archive({"bin/sh": elf})
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    config = {"architecture": "arm64", "os": "linux", "config": {}}
    config["rootfs"] = {"type": "layers", "diff_ids": [digest]}
    manifest = [{"Config": "config.json", "RepoTags": [FOREIGN], "Layers": ["layer.tar"]}]
    texts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    return archive({"layer.tar": layer, **texts})


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o755
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            OTHER_IMAGE + "nowhere.invalid/team/app:1\n",
            r"node wrong-\d cannot get the image nowhere.invalid/team/app:1: .*; what to do: is the name",
        ),
        (
            TASK + "user: nobodyhere\n",
            r"the image orch/mpi:\w+ has no user nobodyhere; what to do: `user` takes a name",
        ),
        (
            TASK + "working_dir: /proc/nothing\n",
            r"`working_dir` /proc/nothing cannot be made in the container of rank 0: .*; what to do: name",
        ),
        (
            TASK + "files: [big.bin]\n",
            r"the disk of node wrong-\d is full: .*; what to do: free space there",
        ),
    ],
    ids=["no-image", "no-user", "no-folder", "disk-full"],
)
def test_a_run_that_a_node_cannot_start_says_why_and_what_to_do(
    place: Folder, text: str, message: str
) -> None:
    (place.path / "big.bin").write_bytes(os.urandom(2 << 20))
    full = "big.bin" in text
    if full:
        on_nodes(
            place, "mkdir -p /var/lib/orch/files && mount -t tmpfs -o size=512k none /var/lib/orch/files"
        )
    try:
        said = run(place, text)
    finally:
        if full:
            on_nodes(place, "umount /var/lib/orch/files")
    assert said.code == 6, said.err
    (ended,) = [line for line in said.err.splitlines() if line.startswith("run wrong-task: failed")]
    assert re.search(f"failed: {message}", ended), ended
    assert place.orch("show", "wrong-task").code == 0


def test_an_image_for_another_machine_is_warned_of_before_it_fails(place: Folder) -> None:
    on_nodes(place, "docker load", foreign_image())
    try:
        said = run(place, OTHER_IMAGE + f"{FOREIGN}\n")
    finally:
        on_nodes(place, f"docker rmi -f {FOREIGN}")
    assert said.code == 6
    assert f"the image {FOREIGN} is for linux/arm64, which this node is not" in said.err
    assert "xec format error" in said.out


def test_a_shell_that_the_image_lacks_is_told_in_the_log(place: Folder) -> None:
    said = run(place, TASK + "shell: zsh\n")
    assert said.code == 6
    assert "orch: this image has no zsh: set `shell` to one it has" in said.out
    assert "exited with code 127" in said.err


@pytest.mark.parametrize(
    ("words", "code", "first", "hint"),
    [
        (("wrong-0:/no/such", "."), 2, "error: there is no /no/such on node wrong-0", ""),
        (("nothing.txt", "wrong-0:/tmp"), 2, "error: there is no nothing.txt here", ""),
        (
            ("fleet.yml", "wrong-0:/proc/x"),
            6,
            "wrong-0: error: /proc of node wrong-0 cannot be written",
            "hint: name a folder that is there and that the login may write to",
        ),
        (
            ("wrong-0:/etc/hostname", "/proc/x"),
            6,
            "error: /proc/x cannot be written on this machine",
            "hint: name a folder that you may write to",
        ),
        (
            ("wrong-9:/etc/hostname", "."),
            3,
            "error: neither a run nor a node of this project is named 'wrong-9'",
            "did you mean 'wrong-0'?",
        ),
        (("nope/0:/etc/hostname", "."), 3, "error: no run named 'nope'", "`orch ps -a` lists all"),
    ],
)
def test_a_copy_that_cannot_be_says_which_end_and_why(
    place: Folder, words: tuple[str, str], code: int, first: str, hint: str
) -> None:
    said = place.orch("cp", *words)
    assert (said.code, said.err.splitlines()[0]) == (code, first)
    assert hint in said.err
