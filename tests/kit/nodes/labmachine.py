"""One server of the lab: what runs on it, what it is reached by, what is put on it."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kit.nodes.containershell import inside

from orch.spec.access import Jump
from orch.spec.state import NodeState


def docker(*words: str, data: bytes | None = None, check: bool = True) -> str:
    done = subprocess.run(["docker", *words], input=data, capture_output=True, check=False)
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(words)}: {done.stderr.decode()}")
    return done.stdout.decode().strip()


def freeze(container: str) -> None:
    """Freeze a container. The kernel gives up where processes come and go faster than it can freeze them."""
    for patience in range(20, -1, -1):
        try:
            docker("pause", container)
        except AssertionError as error:
            if "unable to freeze" not in str(error) or not patience:
                raise
            time.sleep(0.5)
        else:
            return


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited too long until {what}"
        time.sleep(0.1)


def left_behind(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """What differs between two snapshots: path -> what it was, what it is; "-": not there."""
    paths = sorted({*before, *after})
    found = {path: (before.get(path, "-"), after.get(path, "-")) for path in paths}
    return {path: (was, now) for path, (was, now) in found.items() if was != now}


def archive(texts: dict[str, tuple[str, int]]) -> bytes:
    """Files as tar: path -> text, mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (text, mode) in texts.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            member.size, member.mode = len(text.encode()), mode
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@dataclass(frozen=True)
class Network:
    """A network of the lab. `subnet` is a CIDR, `gateway` this machine's address in it."""

    name: str
    subnet: str
    gateway: str


@dataclass(frozen=True)
class Key:
    """A client's key: path of the private file, public half as in authorized_keys."""

    path: Path
    public: str


@dataclass(frozen=True)
class Machine:
    """What a server is: sshd and Docker. `port` is published on 127.0.0.1; None: only a jump reaches it.

    Logins: `ops` (sudo without password), `root`, `guest` (no sudo), all by the lab's key. `addresses`:
    network -> address.
    """

    name: str
    container: str
    host_key: str
    key: Key
    port: int | None
    sshd_port: int = 22
    addresses: dict[str, str] = field(default_factory=dict)

    def run(self, script: str, check: bool = True) -> str:
        """What a shell of root on the server prints."""
        return inside(self.container, script, check)

    def put(self, path: str, text: str, mode: int = 0o644) -> None:
        docker("cp", "-", f"{self.container}:/", data=archive({path: (text, mode)}))

    def address(self, network: Network) -> str:
        return self.addresses[network.name]

    def interface(self, network: Network) -> str:
        """Name of the interface in a network."""
        return self.run(f"ip -o -4 addr | awk '/ {self.address(network)}\\// {{ print $2 }}'")

    def state(self, index: int = 0, *, user: str = "ops", through: tuple[Machine, ...] = ()) -> NodeState:
        """This server as a node, for parts that are tested below the command line. `through`: jumps."""
        common = next((n for n in self.addresses if through and n in through[-1].addresses), "")
        return NodeState(
            index=index,
            name=self.name,
            address=self.addresses[common] if through else "127.0.0.1",
            port=self.sshd_port if through else self.port or 0,
            user=user,
            identity=str(self.key.path),
            host_key=self.host_key,
            jump=tuple(hop._jump(through[at - 1] if at else None) for at, hop in enumerate(through)),
        )

    def _jump(self, before: Machine | None) -> Jump:
        common = next((n for n in self.addresses if before and n in before.addresses), "")
        return Jump(
            address=self.addresses[common] if before else "127.0.0.1",
            port=self.sshd_port if before else self.port or 0,
            user="guest",
            identity=str(self.key.path),
            host_key=self.host_key,
        )

    def snapshot(self) -> dict[str, str]:
        """Everything a stranger could have changed: files with mode and sum, users, containers, images."""
        every = (
            "find /etc /home /root /opt /srv /tmp /usr/local /var/lib /var/spool /var/tmp"
            " \\( -path /var/lib/docker -o -path /var/lib/containerd \\) -prune -o"
        )
        # What vanishes meanwhile is no failure of the look: it shows without a sum, or not at all.
        script = f"{every} -printf '%m %u %y %p\\n'; echo; {every} -type f -exec md5sum {{}} +"
        listed, _, sums = self.run(script, check=False).partition("\n\n")
        found = {line.split(None, 3)[3]: line for line in listed.splitlines()}
        for digest, path in (line.split(None, 1) for line in sums.splitlines()):
            found[path] = f"{found.get(path, '')} {digest}"
        assert len(found["/etc/passwd"].split()) == 5, f"{self.name} does not list its files"
        for what in ("ps -aq", "images -q", "volume ls -q", "network ls --format {{.Name}}"):
            found[f"docker {what}"] = self.run(f"docker {what} | sort", check=False)
        return found

    # Docker and sshd

    def docker_answers(self) -> bool:
        return bool(self.run("docker version -f '{{.Server.Version}}' 2>/dev/null", check=False))

    def stop_docker(self) -> None:
        self.run("pkill -x dockerd; while pgrep -x dockerd > /dev/null; do sleep 0.05; done", check=False)

    def start_docker(self) -> None:
        self.run("sh /usr/local/lib/server/start-docker.sh")
        wait_until(self.docker_answers, f"Docker of {self.name} answers")

    def reload_sshd(self) -> None:
        """Take new settings or host keys; connections that are there stay as they are."""
        before = self._listening()
        self.run("kill -HUP $(cat /run/sshd.pid)")
        # It keeps its PID and makes its sockets anew: until then the old one answers.
        wait_until(lambda: self._listening() not in ("", before), f"sshd of {self.name} reads its settings")
        wait_until(self.ssh_answers, f"sshd of {self.name} answers")

    def _listening(self) -> str:
        """The sockets that sshd listens on."""
        return self.run(f"ss -Hltne 'sport = :{self.sshd_port}' | grep -o 'ino:[0-9]*' | sort", check=False)

    def ssh_answers(self) -> bool:
        return "SSH-2.0" in self.run(
            f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{self.sshd_port}; read -t 1 -u 3 line; echo \"$line\"'"
            " 2>/dev/null",
            check=False,
        )

    def authorize(self, *keys: Key, users: tuple[str, ...] = ("ops", "root", "guest")) -> None:
        for user in users:
            home = "/root" if user == "root" else f"/home/{user}"
            for key in keys:
                self.run(
                    f"install -d -m 700 -o {user} -g {user} {home}/.ssh; "
                    f"echo '{key.public}' >> {home}/.ssh/authorized_keys; "
                    f"chown {user}: {home}/.ssh/authorized_keys; chmod 600 {home}/.ssh/authorized_keys"
                )

    def revoke(self, key: Key, users: tuple[str, ...] = ("ops",)) -> None:
        """Take a key out again that `authorize` let in."""
        for user in users:
            home = "/root" if user == "root" else f"/home/{user}"
            self.run(f"sed -i '\\|{key.public}|d' {home}/.ssh/authorized_keys")
