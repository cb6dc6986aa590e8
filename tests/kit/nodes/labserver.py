"""What is broken on a server of the lab, one thing at a time.

Each is a context manager that mends at its end, so that servers live for a whole test session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kit.nodes.labdevices import Devices
from kit.nodes.labmachine import Network, docker, freeze, wait_until


class Server(Devices):
    """A server and its misfortunes."""

    @contextlib.contextmanager
    def docker_stopped(self) -> Iterator[None]:
        self.stop_docker()
        try:
            yield
        finally:
            self.start_docker()

    @contextlib.contextmanager
    def docker_missing(self) -> Iterator[None]:
        """Neither client nor server, as on a fresh installation."""
        with self.docker_stopped():
            self.run("mv /usr/bin/docker /usr/bin/.docker")
            try:
                yield
            finally:
                self.run("mv /usr/bin/.docker /usr/bin/docker")

    @contextlib.contextmanager
    def sudo_wants_a_password(self) -> Iterator[None]:
        with self._replaced("/etc/sudoers.d/ops", "ops ALL=(ALL) ALL\n", 0o440):
            yield

    @contextlib.contextmanager
    def no_forwarding(self) -> Iterator[None]:
        with self._sshd_setting("AllowTcpForwarding no"):
            yield

    @contextlib.contextmanager
    def log_ins(self, pending: int) -> Iterator[None]:
        """More log-ins than so many at once are dropped, each of them. Stock settings do so by chance."""
        with self._sshd_setting(f"MaxStartups {pending}"):
            yield

    @contextlib.contextmanager
    def other_host_key(self) -> Iterator[str]:
        """Another host key, as after a new installation; gives its public half."""
        kept = "/etc/ssh/ssh_host_ed25519_key"
        self.run(f"mkdir /root/kept && mv {kept}* /root/kept && ssh-keygen -q -t ed25519 -N '' -f {kept}")
        self.reload_sshd()
        try:
            yield " ".join(self.run(f"cat {kept}.pub").split()[:2])
        finally:
            self.run(f"rm {kept}*; mv /root/kept/* /etc/ssh/ && rmdir /root/kept")
            self.reload_sshd()

    @contextlib.contextmanager
    def ssh_stopped(self) -> Iterator[None]:
        """New connections are refused and the ones that are there end."""
        self.run("pkill -x sshd; while pgrep -x sshd > /dev/null; do sleep 0.05; done", check=False)
        try:
            yield
        finally:
            self.run("/usr/sbin/sshd -E /var/log/sshd.log")
            wait_until(self.ssh_answers, f"sshd of {self.name} answers")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The machine hangs: connections open, nothing answers."""
        freeze(self.container)
        try:
            yield
        finally:
            docker("unpause", self.container)

    @contextlib.contextmanager
    def without_toolkit(self) -> Iterator[None]:
        """The NVIDIA Container Toolkit is not installed."""
        moved = "/usr/local/bin/nvidia-container-runtime-hook"
        with self._replaced("/etc/docker/daemon.json", "{}"):
            self.run(f"mv {moved} /root/hook; mv /usr/local/bin/nvidia-ctk /root/ctk")
            self.stop_docker()
            self.start_docker()
            try:
                yield
            finally:
                self.run(f"mv /root/hook {moved}; mv /root/ctk /usr/local/bin/nvidia-ctk")
        self.stop_docker()
        self.start_docker()

    @contextlib.contextmanager
    def lost_gpu(self) -> Iterator[None]:
        """The last NVIDIA GPU has fallen off the bus: lspci still lists it, the driver does not."""
        rows = self.run("cat /etc/accelerators/nvidia").splitlines()[:-1]
        with self._replaced("/etc/accelerators/nvidia", "".join(f"{row}\n" for row in rows)):
            yield

    @contextlib.contextmanager
    def driver_gone(self) -> Iterator[None]:
        """The NVIDIA driver does not load (a kernel update): nvidia-smi fails, lspci lists the devices."""
        self.run("mv /etc/accelerators/nvidia /root/nvidia")
        try:
            yield
        finally:
            self.run("mv /root/nvidia /etc/accelerators/nvidia")

    @contextlib.contextmanager
    def disk_of(self, gib: int) -> Iterator[None]:
        """Docker's data root has this size; nothing is lost."""
        before = self.run("df -k /var/lib/docker | awk 'NR == 2 { print $2 }'")
        self.run(f"mount -o remount,size={gib}g /var/lib/docker")
        try:
            yield
        finally:
            self.run(f"mount -o remount,size={before}k /var/lib/docker")

    @contextlib.contextmanager
    def clock_off(self, seconds: int = 600) -> Iterator[None]:
        """`date` on the server's PATH is wrong by so much (containers share the machine's clock)."""
        script = f'#!/bin/sh\nexec /usr/bin/date -d "{seconds} seconds" "$@"\n'
        self.put("/usr/local/bin/date", script, 0o755)
        try:
            yield
        finally:
            self.run("rm /usr/local/bin/date")

    @contextlib.contextmanager
    def refusing(self, other: Server, *, but_ssh: bool = True) -> Iterator[None]:
        """A firewall here drops what comes from another server, by default all but SSH."""
        rules = [
            f"INPUT -s {address} -p tcp {f'! --dport {self.sshd_port} --syn' if but_ssh else ''} -j DROP"
            for address in other.addresses.values()
        ]
        self.run("; ".join(f"iptables -I {rule}" for rule in rules))
        try:
            yield
        finally:
            self.run("; ".join(f"iptables -D {rule}" for rule in rules))

    @contextlib.contextmanager
    def open_port(self, port: int) -> Iterator[None]:
        """Something listens on a port of the server."""
        code = (
            "import socket, time; s = socket.socket(); s.setsockopt(1, socket.SO_REUSEADDR, 1)"
            f"; s.bind(('', {port})); s.listen(); time.sleep(9999)"
        )
        docker("exec", "-d", self.container, "python3", "-c", code)
        wait_until(lambda: f":{port} " in self.run("ss -Hltn"), f"port {port} of {self.name} is open")
        try:
            yield
        finally:
            self.run(f"pkill -f 'bind.*{port}'", check=False)

    @contextlib.contextmanager
    def mtu(self, network: Network, mtu: int) -> Iterator[None]:
        interface = self.interface(network)
        before = self.run(f"cat /sys/class/net/{interface}/mtu")
        self.run(f"ip link set dev {interface} mtu {mtu}")
        try:
            yield
        finally:
            self.run(f"ip link set dev {interface} mtu {before}")

    @contextlib.contextmanager
    def link_speed(self, network: Network, mbps: int) -> Iterator[None]:
        """The kernel says another speed of an interface."""
        path = f"/sys/class/net/{self.interface(network)}/speed"
        self.run(f"echo {mbps} > /run/speed-{mbps}; mount --bind /run/speed-{mbps} {path}")
        try:
            yield
        finally:
            self.run(f"umount {path}")

    @contextlib.contextmanager
    def rdma(self, network: Network, devices: int = 1, *, active: bool = True) -> Iterator[None]:
        """RDMA devices in /sys and /dev, of which the first belongs to a network's interface."""
        script = ["mkdir -p /run/class /dev/infiniband", "mount -t tmpfs class /run/class"]
        script += [
            "cp -a /sys/class/. /run/class/",
            f"cd /run/class; {_real_interface(self.interface(network))}",
        ]
        state, phys = ("4: ACTIVE", "5: LinkUp") if active else ("1: DOWN", "3: Disabled")
        says = {"state": state, "phys_state": phys, "link_layer": "Ethernet", "rate": "400 Gb/sec (4X NDR)"}
        for index in range(devices):
            port = f"infiniband/mlx5_{index}/ports/1"
            script += [f"mkdir -p {port}", *(f"echo '{text}' > {port}/{name}" for name, text in says.items())]
            script += [f": > /dev/infiniband/uverbs{index}"]
        script += [f"mkdir -p net/{self.interface(network)}/device/infiniband/mlx5_0"]
        self.run("; ".join([*script, "mount --bind /run/class /sys/class"]))
        try:
            yield
        finally:
            self.run("umount /sys/class; umount /run/class; rm -rf /dev/infiniband")

    @contextlib.contextmanager
    def machine_id(self, text: str) -> Iterator[None]:
        """/etc/machine-id, as of another server: a cloned image."""
        with self._replaced("/etc/machine-id", text + "\n"):
            yield

    @contextlib.contextmanager
    def hugepages(self, pages: int) -> Iterator[None]:
        self._hugepages(pages)
        try:
            yield
        finally:
            self.run("umount /proc/meminfo")

    @contextlib.contextmanager
    def _sshd_setting(self, line: str) -> Iterator[None]:
        path = "/etc/ssh/sshd_config.d/lab.conf"
        self.put(path, line + "\n")
        self.reload_sshd()
        try:
            yield
        finally:
            self.run(f"rm {path}")
            self.reload_sshd()

    @contextlib.contextmanager
    def _replaced(self, path: str, text: str, mode: int = 0o644) -> Iterator[None]:
        """Another content of a file. It is written in place: whoever has it open or mounted sees it too."""
        kept = f"/root/{path.replace('/', '_')}"
        self.run(f"cp -a {path} {kept}")
        self.put(path, text, mode)
        try:
            yield
        finally:
            self.run(f"mv {kept} {path}")


def _real_interface(name: str) -> str:
    """In a copy of /sys/class: an interface as a folder, so that a device can be put below it."""
    return (
        f"rm net/{name}; mkdir net/{name}; "
        f"for f in /sys/devices/virtual/net/{name}/*; do ln -s $f net/{name}/; done"
    )
