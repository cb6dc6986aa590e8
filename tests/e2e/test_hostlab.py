"""The lab's servers are what they say: a test that fails on them fails for a reason of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from kit.nodes.containershell import shell_of
from kit.nodes.hostlab import Room
from kit.nodes.labmachine import left_behind


def ssh(room: Room, name: str, command: str) -> str:
    """What OpenSSH's client prints, with the user's ~/.ssh/config of the room."""
    words = ["ssh", "-F", str(room.home / ".ssh/config"), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"]
    words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    jump = [f"ProxyCommand={' '.join(words)} -W %h:%p login"] if name == "gpu4" else []
    done = subprocess.run(
        [*words, *(word for line in jump for word in ("-o", line)), name, command],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip()


def test_each_server_lets_its_user_in_and_the_last_one_only_through_the_jump_host(room: Room) -> None:
    for server in room.servers:
        assert ssh(room, server.name, "sudo -n id -un; hostname") == f"root\n{server.name}"
    gpu4 = room.servers[3]
    direct = ["ssh", "-F", "/dev/null", "-o", "ConnectTimeout=60", f"ops@{gpu4.address(room.fabric)}", "true"]
    assert "refused" in subprocess.run(direct, capture_output=True, text=True, check=False).stderr


def test_the_shell_that_waits_in_a_server_says_what_docker_exec_says(room: Room) -> None:
    container = room.servers[2].container
    shell = shell_of(container)
    for script in ("echo out; echo err >&2; exit 3", "cat; printf 'no line'", "syntax (", "seq 99999"):
        words = ["docker", "exec", container, "sh", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert shell.run(script) == (done.returncode, done.stdout, done.stderr)
    assert shell.run("echo said; kill -9 $PPID; sleep 9")[:2] == (137, "said\n")  # the one that waits
    assert shell.run("echo again") == (0, "again\n", "")
    code, _, told = shell_of(f"{container}-none").run("true")
    assert code == 1
    assert "No such container" in told


def test_the_pretended_gpus_are_seen_in_a_container_of_the_server(room: Room) -> None:
    gpu1 = room.servers[0]
    small = "orch/base:bookworm"
    save = subprocess.Popen(["docker", "save", small], stdout=subprocess.PIPE)
    load = ["docker", "exec", "-i", gpu1.container, "docker", "load", "-q"]
    subprocess.run(load, stdin=save.stdout, check=True, capture_output=True)
    save.wait()
    try:
        assert gpu1.run(f"docker run --rm --gpus all {small} nvidia-smi -L | wc -l") == "8"
        some = gpu1.run(f"docker run --rm --gpus '\"device=2,3\"' {small} nvidia-smi -L")
        assert [line.partition(":")[0] for line in some.splitlines()] == ["GPU 0", "GPU 1"]
        with gpu1.without_toolkit():
            refused = gpu1.run(f"docker run --rm --gpus all {small} nvidia-smi -L 2>&1", check=False)
            assert "could not select device driver" in refused
    finally:
        gpu1.run(f"docker rmi {small}")


BREAKS: dict[str, tuple[Callable[[Room], AbstractContextManager[object]], str]] = {
    "docker": (lambda room: room.servers[0].docker_stopped(), "docker version -f '{{.Server.Version}}' 2>&1"),
    "no docker": (lambda room: room.servers[0].docker_missing(), "docker version 2>&1 | head -1"),
    "sudo": (lambda room: room.servers[0].sudo_wants_a_password(), "su ops -c 'sudo -n true' 2>&1"),
    "forwarding": (lambda room: room.servers[0].no_forwarding(), "sshd -T | grep allowtcpforwarding"),
    "host key": (lambda room: room.servers[0].other_host_key(), "cat /etc/ssh/ssh_host_ed25519_key.pub"),
    "sshd": (lambda room: room.servers[0].ssh_stopped(), "ss -Hltn 'sport = :22' | wc -l"),
    "gpu": (lambda room: room.servers[0].lost_gpu(), "nvidia-smi -L | wc -l"),
    "driver": (lambda room: room.servers[0].driver_gone(), "nvidia-smi | head -1; lspci | wc -l"),
    "disk": (lambda room: room.servers[0].disk_of(20), "df -k --output=size /var/lib/docker | tail -1"),
    "clock": (
        lambda room: room.servers[0].clock_off(),
        "echo $(( ($(date +%s) - $(/usr/bin/date +%s)) / 60 ))",
    ),
    "mtu": (lambda room: room.servers[0].mtu(room.fabric, 1400), "ip -o link | grep -o 'mtu [0-9]*'"),
    "speed": (lambda room: room.servers[0].link_speed(room.fabric, 400000), "cat /sys/class/net/eth*/speed"),
    "rdma": (lambda room: room.servers[0].rdma(room.fabric), "ls /sys/class/infiniband 2>&1"),
    "huge pages": (lambda room: room.servers[0].hugepages(4), "grep HugePages_Total /proc/meminfo"),
    "machine id": (lambda room: room.servers[0].machine_id("0" * 32), "cat /etc/machine-id"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_is_broken_shows_and_is_mended(room: Room, what: str) -> None:
    broken, look = BREAKS[what]
    server = room.servers[0]
    whole = server.run(look, check=False)
    with broken(room):
        assert server.run(look, check=False) != whole
    assert server.run(look, check=False) == whole


def test_a_firewall_closes_what_is_not_ssh_between_two_servers(room: Room) -> None:
    gpu1, gpu2 = room.servers[0], room.servers[1]

    def reaches(port: int, within_s: int = 60) -> bool:
        at = f"/dev/tcp/{gpu2.address(room.fabric)}/{port}"
        script = f"timeout {within_s} bash -c 'exec 3<>{at}' && echo yes"
        return gpu1.run(script, check=False) == "yes"

    with gpu2.open_port(7000):
        assert reaches(7000)
        with gpu2.refusing(gpu1):
            assert not reaches(7000, within_s=2)
            assert reaches(22)
        assert reaches(7000)


def test_each_vendor_s_tool_lists_what_was_given(room: Room) -> None:
    server = room.servers[2]
    before = server.snapshot()
    server.give_amd(8)
    assert server.run("rocm-smi --showproductname --json | grep -o 'card[0-9]' | wc -l") == "8"
    assert server.run("amd-smi static --asic --vram --driver --json | grep -c market_name") == "8"
    server.take_accelerators()
    server.give_gaudi(4)
    assert server.run("hl-smi -Q name -f csv,noheader | wc -l") == "4"
    assert "habana" in server.run("docker info -f '{{json .Runtimes}}'")
    server.take_accelerators()
    server.give_tenstorrent(2)
    assert server.run("tt-smi -s | grep -c board_type") == "2"
    server.take_accelerators()
    assert left_behind(before, server.snapshot()) == {}
