"""Servers for tests of SSH fleets: containers like machines that a user has, with sshd, Docker and sudo.

`HostLab` makes networks, keys and servers and removes them all. labmachine.py is what a server is,
labdevices.py which accelerators are put into it, labserver.py what is broken on it. A server's SSH port is
published on 127.0.0.1, or only a jump host reaches it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kit import TESTS
from kit.nodes.labmachine import Key, Network, archive, docker, wait_until
from kit.nodes.labserver import Server
from kit.support import ORCH, Folder, Said, free_port
from platformdirs import user_cache_path

from orch import images

FILES = TESTS / "hosts"
PASSPHRASE = "open sesame"


def image() -> str:
    """The servers' image, built when what it is made of has changed."""
    base = images.ensure("node", progress=print)
    digest = hashlib.sha256(base.encode())
    for name in ("Dockerfile", "server-entry.sh", "start-docker.sh", "containerd.toml"):
        digest.update((FILES / name).read_bytes())
    tag = f"orch-test/server:{digest.hexdigest()[:12]}"
    with (user_cache_path("orch", ensure_exists=True) / "test-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one builds it, whoever else needs it waits
        if not docker("images", "-q", tag):
            proxies = [
                word
                for name in ("http_proxy", "https_proxy", "no_proxy")
                if name in os.environ
                for word in ("--build-arg", name)
            ]
            docker("build", "--force-rm", "-t", tag, "--build-arg", f"BASE={base}", *proxies, str(FILES))
    return tag


@dataclass
class HostLab:
    """Makes servers and removes them all at the end. `key` opens every account of every server."""

    folder: Path
    tag: str = field(default_factory=lambda: f"orch-ssh-{secrets.token_hex(3)}")
    networks: list[Network] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.image = image()
        self.key = self.new_key("key")

    def network(self, *, internal: bool = False, mtu: int = 1500) -> Network:
        """A network of private addresses. An internal one has no way out and publishes nothing."""
        name = f"{self.tag}-{len(self.networks)}"
        for _ in range(20):
            prefix = f"10.{random.randint(64, 190)}.{random.randint(0, 255)}"
            words = ["network", "create", "--label", f"orch.test={self.tag}", "--subnet", f"{prefix}.0/24"]
            words += ["--gateway", f"{prefix}.1", "--opt", f"com.docker.network.driver.mtu={mtu}"]
            if docker(*words, *(["--internal"] if internal else []), name, check=False):
                self.networks.append(Network(name, f"{prefix}.0/24", f"{prefix}.1"))
                return self.networks[-1]
        raise AssertionError("no free subnet")

    def server(
        self,
        name: str,
        *networks: Network,
        direct: bool = True,
        engine: bool = True,
        sshd_port: int = 22,
        disk_gib: int | None = 200,
        options: tuple[str, ...] = (),
    ) -> Server:
        """A server in some networks; its interfaces are eth0, eth1… in their order.

        `direct`: its port is published on 127.0.0.1 (the first network must not be internal); otherwise even
        this machine is kept out, and only other servers reach it, by its address or its name. `engine`: with
        Docker. `disk_gib`: of Docker's disk, which is in memory; None for one that outlives a stop of the
        server. It is ready when this returns, after about two seconds.
        """
        container, port = f"{self.tag}-{name}", free_port() if direct else None
        number = 2 + len(self.servers)
        addresses = {n.name: f"{n.gateway.rpartition('.')[0]}.{number}" for n in networks}
        host_key = self.new_key(f"host-{name}")
        caps = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK", "SYS_NICE", "MKNOD")
        docker(
            *("create", "--name", container, "--hostname", name, "--label", f"orch.test={self.tag}"),
            *("--network", networks[0].name, "--ip", addresses[networks[0].name], "--network-alias", name),
            *("--cgroupns", "private", "--security-opt", "seccomp=unconfined"),
            *("--security-opt", "apparmor=unconfined"),
            *(word for cap in caps for word in ("--cap-add", cap)),
            *(("--tmpfs", f"/var/lib/docker:rw,exec,dev,suid,size={disk_gib}g") if disk_gib else ()),
            *(() if disk_gib else ("--volume", "/var/lib/docker")),
            *("--env", f"SERVER_DOCKER={'yes' if engine else 'no'}"),
            *(("--publish", f"127.0.0.1:{port}:{sshd_port}") if direct else ()),
            *(*options, self.image),
        )
        files = {
            "etc/machine-id": (secrets.token_hex(16) + "\n", 0o444),
            "etc/ssh/ssh_host_ed25519_key": (host_key.path.read_text(), 0o600),
            "etc/ssh/ssh_host_ed25519_key.pub": (host_key.public + "\n", 0o644),
        }
        if sshd_port != 22:
            files["etc/ssh/sshd_config.d/port.conf"] = (f"Port {sshd_port}\n", 0o644)
        docker("cp", "-", f"{container}:/", data=archive(files))
        docker("start", container)
        for network in networks[1:]:
            address = addresses[network.name]
            docker("network", "connect", "--ip", address, "--alias", name, network.name, container)
        server = Server(name, container, host_key.public, self.key, port, sshd_port, addresses)
        self.servers.append(server)
        server.authorize(self.key)
        wait_until(server.ssh_answers, f"sshd of {name} answers")
        if not direct:
            rules = (f"iptables -I INPUT -s {network.gateway} -j REJECT" for network in networks)
            server.run("; ".join(rules))
        if engine:
            wait_until(server.docker_answers, f"Docker of {name} answers")
        return server

    def new_key(self, name: str, *, kind: str = "ed25519", passphrase: str = "") -> Key:
        """A key pair under the lab's folder."""
        path = self.folder / name
        if path.exists():  # the lab of a session is asked for one name by several tests
            path = self.folder / f"{name}-{secrets.token_hex(3)}"
        words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", f"test {name}", "-f", str(path)]
        subprocess.run(words, check=True)
        public = " ".join(path.with_suffix(".pub").read_text().split()[:2])
        return Key(path, public)

    @contextlib.contextmanager
    def agent(self, *keys: Key) -> Iterator[dict[str, str]]:
        """A real ssh-agent that holds keys (of PASSPHRASE, or of none); gives the variables that name it."""
        sock = self.folder / f"agent-{secrets.token_hex(2)}"
        ask = self.folder / "askpass"
        ask.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
        ask.chmod(0o700)
        process = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
        try:
            env = {"SSH_AUTH_SOCK": str(sock)}
            # 1: it has no key yet; 2: nobody answers, which may be so when its socket is there already.
            listed = ("ssh-add", "-l")
            asked = {**os.environ, **env}
            wait_until(
                lambda: subprocess.run(listed, env=asked, capture_output=True, check=False).returncode != 2,
                "ssh-agent answers",
            )
            more = {"SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
            for key in keys:
                words = ["ssh-add", "-q", str(key.path)]
                subprocess.run(words, env={**os.environ, **env, **more}, stdin=subprocess.DEVNULL, check=True)
            yield env
        finally:
            process.terminate()
            process.wait()

    def ssh_config(self, home: Path, *servers: Server, jump: Server | None = None) -> None:
        """A ~/.ssh/config under `home` that knows servers by name, as one who has logged in to them all.

        Those without a port go by `jump`.
        """
        lines: list[str] = []
        known: list[str] = []
        for server in (*servers, *([jump] if jump else [])):
            lines += [f"Host {server.name}"]
            if server.port is not None:
                known += [f"[127.0.0.1]:{server.port} {server.host_key}"]
            elif jump is not None:
                shared = next(n for n in server.addresses if n in jump.addresses)
                known += [f"{server.addresses[shared]} {server.host_key}"]
            if server.port is not None:
                lines += ["  HostName 127.0.0.1", f"  Port {server.port}"]
            elif jump is not None:
                shared = next(n for n in server.addresses if n in jump.addresses)
                lines += [f"  HostName {server.addresses[shared]}", f"  ProxyJump {jump.name}"]
            user = "guest" if server is jump else "ops"
            lines += [f"  User {user}", f"  IdentityFile {server.key.path}", ""]
        folder = home / ".ssh"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        (folder / "config").write_text("\n".join(lines))
        (folder / "known_hosts").write_text("".join(f"{line}\n" for line in known))

    def remove(self) -> None:
        ids = docker("ps", "-aq", "--filter", f"label=orch.test={self.tag}").split()
        with ThreadPoolExecutor() as pool:  # of several in one call Docker removes one after another
            list(pool.map(lambda each: docker("rm", "-f", "-v", each), ids))
        for network in self.networks:
            docker("network", "rm", network.name, check=False)


@dataclass(frozen=True)
class Client(Folder):
    """A project in a folder, of a user with a home of their own: ~/.ssh lies there."""

    home: Path

    def orch(self, *words: str, env: dict[str, str] | None = None, timeout: float = 300) -> Said:
        return super().orch(*words, env={**self.environment, **(env or {})}, timeout=timeout)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*ORCH, *words],
            cwd=self.path,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        # The caches of engine and images stay those of whoever runs the tests.
        return {"HOME": str(self.home), "XDG_CACHE_HOME": str(user_cache_path())}


@dataclass(frozen=True)
class Room:
    """Four servers of one cluster network: gpu1..gpu3 at published ports, gpu4 only by way of `login`.

    `home` is a user's home whose ~/.ssh/config knows all five by name.
    """

    lab: HostLab
    front: Network
    fabric: Network
    login: Server
    servers: tuple[Server, Server, Server, Server]
    home: Path


def server_room(folder: Path) -> Room:
    """Takes about ten seconds. gpu1 and gpu2 pretend to have eight H100 each."""
    lab = HostLab(folder)
    front, fabric = lab.network(), lab.network(internal=True)
    login = lab.server("login", front, fabric, engine=False)
    gpu1, gpu2, gpu3 = (lab.server(f"gpu{i}", front, fabric) for i in (1, 2, 3))
    gpu4 = lab.server("gpu4", fabric, direct=False)
    for server in (gpu1, gpu2):
        server.give_nvidia(8)
    home = folder / "home"
    lab.ssh_config(home, gpu1, gpu2, gpu3, gpu4, jump=login)
    return Room(lab, front, fabric, login, (gpu1, gpu2, gpu3, gpu4), home)
