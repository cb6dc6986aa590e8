"""Dev environments, entered as users do it: by plain `ssh`, on the quickstart's fleet."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.nodes.containershell import inside
from kit.support import Folder, Said, containers, kill, until

from orch.runner.ledger.ledger import open_ledger
from orch.runner.processes import describe_owner
from orch.stacks.project.project import find

DEV = """\
type: dev-environment
name: lab
image: orch/mpi
ide: vscode
stop_duration: 1
working_dir: /srv
env: {COLOUR: "it's blue"}
init: ["echo made > /srv/made"]
"""


@dataclass(frozen=True)
class User:
    """Somebody with a project and a home of their own."""

    project: Folder
    home: Path

    def orch(self, *words: str) -> Said:
        # What is dear to fetch stays where it is.
        caches = Path.home() / ".cache"
        return self.project.orch(*words, env={"HOME": str(self.home), "XDG_CACHE_HOME": str(caches)})

    def ssh(self, *words: str, program: str = "ssh", stdin: str = "") -> subprocess.CompletedProcess[str]:
        # `ssh` takes the home that the system knows, whatever HOME says.
        words = (program, "-F", str(self.home / ".ssh" / "config"), *words)
        return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=120, check=False)

    @property
    def hosts(self) -> list[str]:
        folder = self.home / ".ssh" / "orch"
        return sorted(path.name for path in folder.glob("[!.]*")) if folder.is_dir() else []

    def status(self, run: str) -> str:
        rows = self.orch("ps", "-a", "--json").json["runs"]
        return next(row["status"] for row in rows if row["run"] == run)

    def kill_driver(self, run: str) -> None:
        ledger = open_ledger(find(self.project.path).ledger_url)
        try:
            row = ledger.get(run)
            assert row.held
            assert row.owner
            kill(int(describe_owner(row.owner).split()[1]))
            until(lambda: not ledger.get(run).held, 60, "the driver is gone")
        finally:
            ledger.close()

    def start(self, text: str, name: str = "lab") -> None:
        self.project.write("dev.yml", text)
        said = self.orch("run", "dev.yml", "--detach", "--name", name)
        assert said.code == 0, said.err
        until(lambda: name in self.hosts, 120, "there is a host")


@pytest.fixture
def user(quickstart: Folder, tmp_path: Path) -> Iterator[User]:
    home = tmp_path / "a home"
    home.mkdir()
    made = User(quickstart, home)
    yield made
    for run in quickstart.orch("ps", "--json").json["runs"]:
        made.orch("stop", run["run"], "--abort")


def test_plain_ssh_enters_until_it_is_stopped_whoever_drives_it(user: User) -> None:
    (user.home / ".ssh").mkdir(mode=0o700)
    own = "Host other\n  User me\n"
    (user.home / ".ssh" / "config").write_text(own)
    user.start(DEV)
    said = user.ssh("lab", "echo $COLOUR; pwd; cat made; id -un; cat", stdin="typed")
    assert (said.returncode, said.stdout) == (0, "it's blue\n/srv\nmade\nroot\ntyped"), said.stderr
    assert user.ssh("lab-0", "exit 7").returncode == 7
    assert user.ssh("-tt", "lab", "tty").stdout.startswith("/dev/pts/")
    (user.home / "given").write_text("a file")
    said = user.ssh("-q", str(user.home / "given"), "lab:/srv/", program="scp")
    assert said.returncode == 0, said.stderr
    assert user.ssh("lab", "cat given").stdout == "a file"
    entry = user.orch("show", "lab", "--json").json["run"]["entry"]
    assert entry == {"command": "ssh lab", "link": "vscode://vscode-remote/ssh-remote+lab/srv"}
    user.kill_driver("lab")
    assert user.ssh("lab", "cat given").stdout == "a file"
    assert user.status("lab") == "running"
    assert user.orch("stop", "lab").code == 0
    assert (user.status("lab"), user.hosts) == ("terminated", [])
    assert user.ssh("lab", "true").returncode == 255
    config = (user.home / ".ssh" / "config").read_text()
    assert config == f'Include "{user.home}/.ssh/orch/*"\n\n{own}'
    assert list((user.project.path / ".orch" / "runs" / "lab").glob("ssh/*")) == []


def test_a_port_of_it_is_reached_and_several_nodes_know_each_other(user: User) -> None:
    user.start(DEV.replace("ide: vscode", "nodes: 2"))
    said = user.ssh("lab-1", 'echo "$ORCH_NODE_RANK of $ORCH_NODES_NUM, $(ssh lab-0 echo rank \\$NODE_RANK)"')
    assert said.stdout == "1 of 2, rank 0\n", said.stderr
    # What editors do: a connection from here that ends at a port there.
    serve = "python3 -m http.server 8743 --bind 127.0.0.1"
    assert user.ssh("lab", f"{serve} >/dev/null 2>&1 & echo").returncode == 0
    ask = "GET /made HTTP/1.0\r\n\r\n"
    until(
        lambda: user.ssh("-W", "127.0.0.1:8743", "lab", stdin=ask).stdout.endswith("made\n"), 60, "an answer"
    )


def test_it_ends_when_nobody_was_connected_and_nobody_watches(user: User) -> None:
    user.start(DEV + "inactivity_duration: 6s\n")
    with subprocess.Popen(
        ["ssh", "-F", str(user.home / ".ssh" / "config"), "lab", "cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as connected:
        user.kill_driver("lab")
        node = next(name for name in containers(user.project, "laptop") if jobs(name))
        assert connected.stdin
        assert connected.stdout
        until(lambda: sign(node) > 0, 60, "it is seen that somebody is connected")
        began = sign(node)
        until(lambda: sign(node) > began + 9, 300, "it lasts longer than it would alone")
        connected.stdin.write(b"here\n")
        connected.stdin.flush()
        assert connected.stdout.readline() == b"here\n"
        connected.stdin.close()
        connected.wait(60)
    until(lambda: not jobs(node), 120, "the node has ended it")
    assert user.status("lab") == "failed"
    shown = user.orch("show", "lab", "--json").json["run"]
    assert shown["nodes"][0]["reason"] == "inactivity_duration_exceeded"
    assert "nobody was connected to rank 0" in shown["message"]
    assert user.hosts == []


def sign(node: str) -> float:
    """When the node was last shown that somebody is connected; 0 for never."""
    return float(inside(node, "stat -c %.Y /var/lib/orch/runs/*/state/connected 2>/dev/null || echo 0"))


def jobs(node: str) -> str:
    return inside(node, "docker ps -q")
