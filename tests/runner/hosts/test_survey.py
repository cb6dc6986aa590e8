"""Real servers with one thing broken on each: the check that says so, by its id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from kit.nodes.hostlab import PASSPHRASE, Room
from kit.nodes.labmachine import left_behind
from kit.nodes.labserver import Server

from orch import images
from orch.providers.orch.ssh_host import SshHostHandler
from orch.runner.errors import HostUnreachable
from orch.runner.hosts.checks.types import CheckOptions, CheckResult, Result
from orch.runner.hosts.survey import Survey, survey
from orch.runner.ledger.run_folder import new_key_pair
from orch.runner.node_api.commands import Command
from orch.runner.node_api.target import Target, TargetError
from orch.runner.ssh.pool import SshConnector
from orch.spec.state import NodeState

# Tests work on one host where one is enough: what is tried between hosts is of no matter then.
ONE = CheckOptions(mesh=False)


def look(*targets: NodeState | TargetError, wanted: CheckOptions = ONE, deadline_s: float = 25.0) -> Survey:
    transport = SshConnector(connect_timeout_s=8.0, deadline_s=deadline_s)
    found = [Target(each) if isinstance(each, NodeState) else each for each in targets]
    try:
        return survey(found, transport, wanted)
    finally:
        transport.close()


def fails(server: Server, check: str, *, user: str = "ops") -> CheckResult:
    """The one check that fails on a server."""
    (host,) = look(server.state(user=user)).hosts
    failing = [each.id for each in host.checks if each.failed]
    assert failing == [check], [(each.id, each.detail) for each in host.checks if each.failed]
    return host.check(check)


def results(found: Survey, check: str) -> dict[str, Result]:
    return {host.name: host.check(check).result for host in found.hosts}


@pytest.fixture
def four(room: Room) -> list[NodeState]:
    """All servers of the room, the last one by way of the jump host."""
    return [s.state(i, through=() if s.port else (room.login,)) for i, s in enumerate(room.servers)]


@pytest.fixture
def cluster(room: Room) -> CheckOptions:
    return CheckOptions(cluster=True, network=room.fabric.subnet)


# --- whole


def test_four_servers_one_behind_a_jump_host_pass_and_share_a_network(
    room: Room, four: list[NodeState], cluster: CheckOptions
) -> None:
    found = look(*four, wanted=cluster)
    assert not found.failed, [(h.name, c.id, c.detail) for h in found.hosts for c in h.checks if c.failed]
    assert found.problems == ()
    assert found.network is not None
    assert [place.address for place in found.network.addresses] == [
        s.address(room.fabric) for s in room.servers
    ]
    assert set(results(found, "net.mesh").values()) == {Result.PASS}
    first = found.hosts[0]
    assert first.facts is not None
    assert first.facts.registered()["gpu_count"] == 8
    assert first.check("ssh.connect").detail.startswith("the login took ")
    assert all(each.hint for host in found.hosts for each in host.checks if each.result is Result.WARN)


def test_nothing_is_left_behind_on_a_server(room: Room, four: list[NodeState], cluster: CheckOptions) -> None:
    server = room.servers[1]
    before = server.snapshot()
    look(*four, wanted=cluster)
    assert left_behind(before, server.snapshot()) == {}
    assert "orch" not in server.run("ls /dev/shm /tmp")
    assert "python3 -" not in server.run("ps -eo args"), "what listened has ended"


def test_a_host_that_is_slow_to_answer_is_waited_for_when_it_is_left(room: Room) -> None:
    server = room.servers[2]
    node, before = server.state(), server.snapshot()
    host = {"stack": "organization/tests/slow", "authorized_keys": [new_key_pair().public]}
    host |= {"name": node.name, **node.ssh.model_dump(exclude={"kind", "jump"})}
    handler = SshHostHandler(deadline_s=5.0)
    handler.create(host)
    assert left_behind(before, server.snapshot()).keys() >= {
        "/var/lib/orch",
        "/home/ops/.ssh/authorized_keys",
    }
    with ThreadPoolExecutor() as pool:
        with server.frozen():
            leaving = pool.submit(SshHostHandler(deadline_s=0.5).delete, node.name, host)
            time.sleep(2.0)
        leaving.result(timeout=120)
    assert left_behind(before, server.snapshot()) == {}


def test_a_root_login_needs_no_sudo(room: Room) -> None:
    (host,) = look(room.servers[0].state(user="root")).hosts
    assert host.check("sudo.nopasswd").detail == "the login is root"
    assert not host.failed


def test_facts_come_in_one_quick_round_trip(room: Room) -> None:
    from orch.runner.hosts.facts import facts_command

    transport = SshConnector()
    node = room.servers[0].state()
    transport.run(node, Command("true"))
    assert transport.run(node, facts_command()).seconds < 20.0
    transport.close()


def test_a_container_sees_all_gpus_when_the_host_has_an_image(room: Room) -> None:
    server = room.servers[1]
    import subprocess

    image = images.ensure("mpi", progress=print)
    save = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
    subprocess.run(
        ["docker", "exec", "-i", server.container, "docker", "load", "-q"], stdin=save.stdout, check=True
    )
    assert save.wait() == 0
    try:
        (host,) = look(server.state(), wanted=replace(ONE, image=image)).hosts
        assert host.check("nvidia.container").detail == f"8 GPUs in a container of {image}"
        with server.lost_gpu():
            (host,) = look(server.state(), wanted=replace(ONE, image=image)).hosts
            assert host.check("nvidia.container").detail == "needs nvidia.driver"
        hook = "/usr/local/bin/nvidia-container-runtime-hook"
        kept = server.run(f"cat {hook}")
        server.put(hook, "#!/bin/sh\necho nvml error: driver not loaded >&2\nexit 1\n", 0o755)
        try:
            (host,) = look(server.state(), wanted=replace(ONE, image=image)).hosts
        finally:
            server.put(hook, kept + "\n", 0o755)
        assert host.check("nvidia.container").result is Result.FAIL
        assert "driver not loaded" in host.check("nvidia.container").detail
        assert server.run("docker ps -aq") == ""
    finally:
        server.run("docker rmi -f $(docker images -q)", check=False)


def test_an_image_that_is_not_there_is_never_pulled_by_a_check(room: Room) -> None:
    (host,) = look(room.servers[0].state(), wanted=replace(ONE, image="nowhere.invalid/none")).hosts
    found = host.check("nvidia.container")
    assert (found.result, "nowhere.invalid/none is not on the host" in found.detail) == (Result.SKIPPED, True)


# --- the login


def test_the_ways_a_login_fails_are_told_apart(room: Room, tmp_path: Path) -> None:
    server = room.servers[0]
    node = server.state()
    stranger = tmp_path / "stranger"
    stranger.write_text(new_key_pair().private)
    stranger.chmod(0o600)
    locked = room.lab.new_key("locked", passphrase=PASSPHRASE)
    ways = {
        "wrong user": node.reached(user="nobody-here").model_copy(update={"name": "a"}),
        "wrong key": node.reached(identity=str(stranger)).model_copy(update={"name": "b"}),
        "no key": node.reached(identity=str(tmp_path / "none")).model_copy(update={"name": "c"}),
        "locked key": node.reached(identity=str(locked.path)).model_copy(update={"name": "d"}),
        "other host key": node.reached(host_key=new_key_pair().public).model_copy(update={"name": "e"}),
        "closed port": node.reached(port=9).model_copy(update={"name": "f"}),
    }
    found = look(*ways.values(), deadline_s=10.0)
    details = {way: host.check("ssh.connect").detail for way, host in zip(ways, found.hosts, strict=True)}
    codes = {way: host.check("ssh.connect").code for way, host in zip(ways, found.hosts, strict=True)}
    assert codes == {**dict.fromkeys(ways, "ORCH364"), "other host key": "ORCH363"}
    assert "nobody-here" in details["wrong user"]
    assert "refuses" in details["wrong key"]
    assert "none" in details["no key"]
    assert "passphrase" in details["locked key"] or "encrypted" in details["locked key"]
    assert details["other host key"].count("SHA256:") == 2
    assert "9" in details["closed port"]
    assert len(set(details.values())) == len(ways)
    assert all(host.check("ssh.connect").hint for host in found.hosts)


def test_an_unreachable_host_is_a_report_and_costs_the_others_nothing(room: Room) -> None:
    first, second = room.servers[:2]
    with second.frozen():
        found = look(first.state(0), second.state(1), deadline_s=10.0)
    assert [host.failed for host in found.hosts] == [False, True]
    assert found.hosts[1].facts is None
    assert {each.result for each in found.hosts[1].checks[1:]} == {Result.SKIPPED}


def test_a_host_that_has_no_target_is_a_report_too(room: Room) -> None:
    error = HostUnreachable("old cannot be reached", where="10.0.0.9:22", detail="no route to host")
    found = look(room.servers[0].state(), TargetError(1, "old", "10.0.0.9", error))
    assert [host.name for host in found.hosts] == ["gpu1", "old"]
    assert (
        found.hosts[1].check("ssh.connect").detail == "old cannot be reached; no route to host (10.0.0.9:22)"
    )


def test_a_login_that_runs_no_commands_is_told(room: Room) -> None:
    server = room.servers[2]
    server.run("usermod -s /usr/sbin/nologin guest")
    try:
        (host,) = look(server.state(user="guest")).hosts
    finally:
        server.run("usermod -s /bin/bash guest")
    assert "runs no commands" in host.check("ssh.connect").detail
    assert "not available" in host.check("ssh.connect").detail


# --- the host


def test_sudo_that_asks_for_a_password(room: Room) -> None:
    server = room.servers[0]
    with server.sudo_wants_a_password():
        found = fails(server, "sudo.nopasswd")
        (host,) = look(server.state()).hosts
    assert "a password is required" in found.detail
    assert "NOPASSWD" in (found.hint or "")
    assert "needs sudo.nopasswd" in host.check("docker.engine").detail
    assert host.check("nvidia.driver").result is Result.PASS, "what needs no root is still looked at"


def test_a_user_without_sudo(room: Room) -> None:
    assert fails(room.servers[0], "sudo.nopasswd", user="guest").code == "ORCH366"


def test_sshd_that_forwards_nothing(room: Room) -> None:
    with room.servers[0].no_forwarding():
        assert fails(room.servers[0], "ssh.forwarding").detail == "AllowTcpForwarding no"


def test_forwarding_that_is_off_for_one_user_only(room: Room) -> None:
    server = room.servers[0]
    server.put("/etc/ssh/sshd_config.d/some.conf", "Match User ops\n  AllowTcpForwarding no\n")
    server.reload_sshd()
    try:
        assert fails(server, "ssh.forwarding").code == "ORCH365"
        (host,) = look(server.state(user="root")).hosts
        assert host.check("ssh.forwarding").result is Result.PASS
    finally:
        server.run("rm /etc/ssh/sshd_config.d/some.conf")
        server.reload_sshd()


def test_a_full_disk(room: Room) -> None:
    with room.servers[0].disk_of(20):
        found = fails(room.servers[0], "host.disk")
    assert "20.0 GB free in /var/lib/docker, 50 GB are needed" in found.detail


def test_a_clock_ten_minutes_off_is_a_warning(room: Room) -> None:
    with room.servers[0].clock_off(600):
        (host,) = look(room.servers[0].state()).hosts
    assert not host.failed
    assert host.check("host.clock").result is Result.WARN
    assert host.check("host.clock").detail == "10 min ahead of this machine"


def test_docker_that_is_stopped_and_docker_that_is_not_there(room: Room) -> None:
    server = room.servers[0]
    with server.docker_stopped():
        stopped = fails(server, "docker.engine")
    with server.docker_missing():
        missing = fails(server, "docker.engine")
    assert "Cannot connect to the Docker daemon" in stopped.detail
    assert stopped.hint == "sudo systemctl enable --now docker"
    assert missing.detail == "there is no docker command"


def test_a_docker_that_hangs_does_not_hold_up_the_rest(room: Room) -> None:
    server = room.servers[0]
    server.put("/usr/local/bin/docker", "#!/bin/sh\nsleep 300\n", 0o755)
    try:
        found = fails(server, "docker.engine")
    finally:
        server.run("rm /usr/local/bin/docker")
        server.run("pkill -f '[s]leep 300'", check=False)
    assert "does not answer" in found.detail


def test_one_machine_id_on_two_servers(room: Room) -> None:
    first, second = room.servers[:2]
    with second.machine_id(first.run("cat /etc/machine-id")):
        found = look(first.state(0), second.state(1))
    assert results(found, "host.unique") == {"gpu1": Result.FAIL, "gpu2": Result.FAIL}
    assert "the same machine id as gpu2" in found.hosts[0].check("host.unique").detail
    assert [problem.code for problem in found.problems] == ["ORCH368"]


# --- accelerators


def test_no_container_toolkit(room: Room) -> None:
    with room.servers[0].without_toolkit():
        found = fails(room.servers[0], "nvidia.toolkit")
    assert found.code == "ORCH373"
    assert "nvidia-container-toolkit" in (found.hint or "")


def test_a_lost_gpu_and_a_driver_that_does_not_load(room: Room) -> None:
    server = room.servers[0]
    with server.lost_gpu():
        assert fails(server, "nvidia.driver").detail == "7 NVIDIA GPUs answer, 8 are on the bus"
    with server.driver_gone():
        gone = fails(server, "nvidia.driver")
    assert gone.detail.startswith(
        "8 NVIDIA GPUs on the bus, but nvidia-smi lists none: NVIDIA-SMI has failed"
    )


@pytest.mark.parametrize(
    ("give", "passing", "name"),
    [
        (lambda s: s.give_amd(8), ["amd.driver"], "8 x AMD Instinct MI300X"),
        (lambda s: s.give_gaudi(8), ["gaudi.driver", "gaudi.runtime"], "8 x HL-225"),
        (lambda s: s.give_tenstorrent(4), ["tt.driver", "tt.hugepages"], "4 x n300"),
    ],
    ids=["amd", "gaudi", "tenstorrent"],
)
def test_accelerators_of_other_vendors(
    room: Room, give: Callable[[Server], None], passing: list[str], name: str
) -> None:
    server = room.servers[2]
    give(server)
    try:
        (host,) = look(server.state()).hosts
    finally:
        server.take_accelerators()
    assert not host.failed
    assert [host.check(each).result for each in passing] == [Result.PASS] * len(passing)
    assert name in host.check(passing[0]).detail


def test_requirements_of_other_vendors_that_are_not_met(room: Room) -> None:
    server = room.servers[2]
    try:
        server.give_gaudi(8, runtime=False)
        assert fails(server, "gaudi.runtime").code == "ORCH377"
        server.take_accelerators()
        server.give_tenstorrent(4, hugepages=0)
        assert fails(server, "tt.hugepages").detail == "HugePages_Total 0"
        server.take_accelerators()
        server.give_amd(8)
        server.run("rm /dev/kfd")
        assert "no /dev/kfd" in fails(server, "amd.driver").detail
    finally:
        server.take_accelerators()


# --- between hosts


def test_two_candidate_networks_are_an_error_that_names_both(room: Room) -> None:
    three = [server.state(at) for at, server in enumerate(room.servers[:3])]
    found = look(*three, wanted=CheckOptions(cluster=True))
    (problem,) = found.problems
    assert (problem.code, problem.hosts) == ("ORCH362", ("gpu1", "gpu2", "gpu3"))
    assert room.front.subnet in problem.detail
    assert room.fabric.subnet in problem.detail
    assert set(results(found, "net.internal").values()) == {Result.FAIL}
    assert {host.check("net.mesh").detail for host in found.hosts} == {"needs net.internal"}
    calm = look(*three, wanted=CheckOptions(cluster=False))
    assert calm.problems == ()


def test_a_faster_link_or_rdma_decides_between_two_networks(room: Room) -> None:
    first, second = room.servers[:2]
    nodes = [first.state(0), second.state(1)]
    wanted = CheckOptions(cluster=True, mesh=False)
    with first.link_speed(room.fabric, 400_000), second.link_speed(room.fabric, 400_000):
        fast = look(*nodes, wanted=wanted)
    assert fast.network is not None
    assert fast.network.cidr == room.fabric.subnet
    with first.rdma(room.fabric), second.rdma(room.fabric):
        found = look(*nodes, wanted=wanted)
    assert found.network is not None
    assert found.network.cidr == room.fabric.subnet
    assert results(found, "rdma.devices") == {"gpu1": Result.PASS, "gpu2": Result.PASS}
    with first.rdma(room.fabric), second.rdma(room.fabric, active=False):
        found = look(*nodes, wanted=wanted)
    assert "mlx5_0/1 DOWN" in found.hosts[1].check("rdma.devices").detail


def test_no_common_network_names_what_each_host_has(room: Room) -> None:
    elsewhere = room.lab.network()
    lone = room.lab.server("lone", elsewhere)
    found = look(room.servers[0].state(0), lone.state(1), wanted=CheckOptions(cluster=True))
    (problem,) = found.problems
    assert problem.code == "ORCH362"
    assert f"lone: {elsewhere.subnet}" in problem.detail


def test_an_internal_ip_that_no_interface_has(room: Room) -> None:
    right = room.servers[0].state(0).model_copy(update={"internal_ip": room.servers[0].address(room.fabric)})
    wrong = room.servers[1].state(1).model_copy(update={"internal_ip": "10.255.255.7"})
    found = look(right, wrong, wanted=CheckOptions(cluster=True))
    (problem,) = found.problems
    assert (problem.code, problem.hosts) == ("ORCH361", ("gpu2",))
    assert room.servers[1].address(room.fabric) in problem.detail
    assert results(found, "net.internal") == {"gpu1": Result.SKIPPED, "gpu2": Result.FAIL}


def test_one_hosts_mtu_that_differs(room: Room, four: list[NodeState], cluster: CheckOptions) -> None:
    with room.servers[1].mtu(room.fabric, 1400):
        found = look(*four, wanted=cluster)
    assert set(results(found, "net.internal").values()) == {Result.FAIL}
    told = found.hosts[0].check("net.internal")
    assert told.code == "ORCH381"
    assert "(1500 on gpu1, gpu3, gpu4; 1400 on gpu2)" in told.detail


def test_ports_that_are_closed_one_way_between_two_hosts(
    room: Room, four: list[NodeState], cluster: CheckOptions
) -> None:
    with room.servers[1].refusing(room.servers[0]):
        found = look(*four, wanted=cluster)
    assert results(found, "net.mesh") == {
        "gpu1": Result.FAIL,
        "gpu2": Result.FAIL,
        "gpu3": Result.PASS,
        "gpu4": Result.PASS,
    }
    told = "gpu1 -> gpu2 fails (no answer in 5 s), the other way is open"
    assert [host.check("net.mesh").detail for host in found.hosts[:2]] == [told, told]


@contextlib.contextmanager
def hidden(servers: Sequence[Server], *programs: str) -> Iterator[None]:
    paths = " ".join(programs)
    for server in servers:
        server.run(f"for p in {paths}; do [ ! -e $p ] || mv $p $p.hidden; done")
    try:
        yield
    finally:
        for server in servers:
            server.run(f"for p in {paths}; do [ ! -e $p.hidden ] || mv $p.hidden $p; done")


PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")


def pair_of(room: Room) -> list[NodeState]:
    return [server.state(at) for at, server in enumerate(room.servers[:2])]


def test_perl_listens_where_there_is_no_python_and_tcp_stands_in_for_ping(
    room: Room, cluster: CheckOptions
) -> None:
    with hidden(room.servers[:2], *PYTHONS, "/usr/bin/ping", "/bin/ping"):
        found = look(*pair_of(room), wanted=cluster)
    assert results(found, "net.mesh") == {"gpu1": Result.PASS, "gpu2": Result.PASS}


def test_without_anything_to_listen_with_sshds_port_is_tried_and_that_is_said(
    room: Room, cluster: CheckOptions
) -> None:
    with hidden(room.servers[:2], *PYTHONS, "/usr/bin/perl", "/usr/bin/nc", "/bin/nc", "/usr/bin/socat"):
        found = look(*pair_of(room), wanted=cluster)
    assert results(found, "net.mesh") == {"gpu1": Result.WARN, "gpu2": Result.WARN}
    assert "of gpu2 only sshd's port was tried" in found.hosts[0].check("net.mesh").detail


@pytest.mark.parametrize("without", [(), ("/usr/bin/ping", "/bin/ping")], ids=["ping", "TCP"])
def test_large_packets_that_vanish_on_the_way(
    room: Room, cluster: CheckOptions, without: tuple[str, ...]
) -> None:
    first, second = room.servers[:2]
    rule = f"INPUT -s {first.address(room.fabric)} -m length --length 1301:65535 -j DROP"
    second.run(f"iptables -I {rule}")
    try:
        with hidden((first, second), *without):
            found = look(*pair_of(room), wanted=cluster)
    finally:
        second.run(f"iptables -D {rule}")
    assert found.hosts[0].check("net.mesh").result is Result.FAIL
    assert "large packets to gpu2 are lost" in found.hosts[0].check("net.mesh").detail


def test_ports_open_to_the_outside_are_a_warning(room: Room) -> None:
    server = room.servers[2]
    node = server.state().reached(address=server.address(room.front), port=22)
    (closed,) = look(node).hosts
    assert closed.check("fw.external").result is Result.PASS
    with server.open_port(2375):
        (open_,) = look(node).hosts
    assert open_.check("fw.external").result is Result.WARN
    assert open_.check("fw.external").detail == "reached from here: port 2375"
