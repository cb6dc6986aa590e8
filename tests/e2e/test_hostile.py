"""A stranger's names, values and files through every verb, on four servers with sshd and two local nodes.

The judge is a listing of each machine before and after: nothing outside the job's container changed, and
no command of the stranger's ran where orch was called.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.containershell import inside
from kit.nodes.hostlab import Client, Room
from kit.nodes.labmachine import left_behind
from kit.nodes.stocked import stocked
from kit.support import Folder, Said, containers, fleet_yaml

# Each would leave a file named `pwned` wherever a shell reads it as more than one word of text.
VALUE = """a b'c"d$(touch /tmp/pwned)`touch /tmp/pwned`; touch /tmp/pwned # \\ {{ 7*7 }} *\u2028|&\n-x"""
NAMES = (
    "x;touch${IFS}/tmp/pwned;",
    "$(touch /tmp/pwned)",
    "x /etc",
    "../../escaped",
    "-x",
    "--help=x",
    "x\ny",
    "n" * 5_000,
    "ｕｎｉ\u2028code",
)
# Verbs that take the name of a fleet, a run or a node.
VERBS = (
    ("fleet", "show"),
    ("down",),
    ("drift",),
    ("refresh",),
    ("unlock",),
    ("logs",),
    ("attach",),
    ("stop",),
    ("ssh",),
    ("cordon",),
)
FILE = "a b;$(touch pwned)'.txt"

TASK = """type: task
nodes: {nodes}
image: orch/mpi
env:
  EVIL: {value}
  target: prod
  ticks: "7"
  R: "4.3"
  N: "1"
  S: "2"
working_dir: {folder}
files:
  - {file}
commands:
  - printf '%s' "$EVIL" | od -An -tx1 | tr -d ' \\n'; echo
  - echo "kept $target $ticks $R $N $S"
  - ls
resources: {{memory: 512MB}}
"""


def quoted(text: str) -> str:
    """A YAML string in double quotes."""
    import json

    return json.dumps(text)


def task(nodes: int) -> str:
    return TASK.format(
        nodes=nodes,
        value=quoted(VALUE),
        folder=quoted("/tmp/it's; touch pwned $(touch pwned)"),
        file=quoted(FILE),
    )


def clean(said: Said) -> Said:
    """Whatever came of it, it is told in words and not as a defect of orch."""
    assert "Traceback" not in said.err, said.err[-2000:]
    assert "bug in orch" not in said.err, said.err[-2000:]
    return said


def try_all(project: Folder, fleet: str, nodes: int, every: int) -> None:
    """Every verb with hostile names, and a run whose values and files are the stranger's.

    Verbs read a name by the same code: each tries one name of `every`, in turn.
    """
    (project.path / FILE).write_text("data\n")
    file = project.write("evil.yml", task(nodes))
    assert clean(project.orch("validate", file)).code == 0
    for name in NAMES[::every]:
        said = clean(project.orch("run", file, "--name", name, "--fleet", fleet, timeout=120))
        assert said.code in (2, 3), (name, said.code, said.err)
    for at, verb in enumerate(VERBS):
        for name in NAMES[at % every :: every]:
            words = [*verb, *(["--"] if name.startswith("-") else []), name]
            words += ["--yes"] if verb == ("down",) else []
            assert clean(project.orch(*words, timeout=120)).code != 0, (verb, name)
    said = clean(project.orch("cordon", "--reason", VALUE, *node_names(project, fleet)[:1], timeout=120))
    if said.code == 0:
        assert clean(project.orch("fleet", "show", fleet)).code == 0
        assert clean(project.orch("cordon", "--undo", *node_names(project, fleet)[:1])).code == 0

    said = clean(project.orch("run", file, "--fleet", fleet, "--env", f"MORE={VALUE}", "--json", timeout=300))
    assert said.code == 0, said.err
    assert [node["exit_code"] for node in said.json["nodes"]] == [0] * nodes
    logs = clean(project.orch("logs", said.json["run"])).out
    assert logs.count(VALUE.encode().hex()) == nodes
    assert logs.count("kept prod 7 4.3 1 2") == nodes
    assert logs.count(FILE) == nodes


def node_names(project: Folder, fleet: str) -> list[str]:
    (shown,) = project.orch("fleet", "show", fleet, "--json").json["fleets"]
    return [node["name"] for node in shown["nodes"]]


def nothing_ran_here(*folders: Path) -> None:
    assert not Path("/tmp/pwned").exists()
    for folder in folders:
        assert list(folder.rglob("*pwned")) == []


@pytest.mark.timeout(900)
def test_servers_are_left_as_they_were_found(room: Room, tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    project = Client(tmp_path, room.home)
    before = {server.name: server.snapshot() for server in room.servers}
    hosts = "[gpu1, gpu2, gpu3, {hostname: gpu4, proxy_jump: {hostname: login}}]"
    text = f"type: fleet\nname: strange\nplacement: cluster\nenv: {{FLEET_EVIL: {quoted(VALUE)}}}\n"
    text += f"ssh_config: {{hosts: {hosts}}}\n"
    file = project.write("fleet.yml", text)
    for words in (("validate", file), ("check", file), ("preview", file)):
        clean(project.orch(*words))
    said = clean(project.orch("up", file, "--yes", "--accept-new-host-keys", timeout=300))
    assert said.code == 0, said.err
    try:
        try_all(project, "strange", 4, every=9)
    finally:
        said = project.orch("down", file, "--yes", timeout=300)
    assert said.code == 0, said.err
    for server in room.servers:
        assert left_behind(before[server.name], server.snapshot()) == {}, server.name
    nothing_ran_here(tmp_path, room.home)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Folder]:
    backend = f"{{type: local, node_image: '{stocked('mpi')}'}}"
    (tmp_path / "orch.yml").write_text(f"project: tests\nbackends: [{backend}]\n")
    project = Folder(tmp_path)
    project.write("fleet.yml", fleet_yaml("strange", 2, f"env: {{FLEET_EVIL: {quoted(VALUE)}}}\n"))
    yield project
    assert project.orch("down", "fleet.yml", "--yes").code == 0


def listing(container: str) -> set[str]:
    """Files of a local node with mode and size, but for Docker's own and what the kernel shows."""
    prune = " -o ".join(
        f"-path {path}"
        for path in ("/proc", "/sys", "/dev", "/var/lib/docker", "/run", "/template", "/var/log")
    )
    find = rf"find / \( {prune} \) -prune -o -type f -printf '%m %u %s %p\n' -o -printf '%m %u %y %p\n'"
    return set(inside(container, find).splitlines())


@pytest.mark.timeout(900)
def test_local_nodes_are_left_as_they_were_found(local: Folder) -> None:
    said = clean(local.orch("up", "fleet.yml", "--yes"))
    assert said.code == 0, said.err
    # The first job brings the folders of orch.
    warm = local.write("warm.yml", "type: task\nimage: orch/mpi\nnodes: 2\ncommands: ['true']\n")
    assert local.orch("run", warm, timeout=300).code == 0
    nodes = list(containers(local, "strange"))
    before = {node: listing(node) for node in nodes}
    try_all(local, "strange", 2, every=4)
    for node in nodes:
        # What a task took along is kept for the next one.
        more = {line for line in listing(node) ^ before[node] if " /var/lib/orch/files" not in line}
        assert more == set(), node
    nothing_ran_here(local.path)
