"""`orch check` as a user sees it: the matrix, the details, the JSON, the exit code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.nodes.hostlab import Room
from kit.support import Folder, Said, fleet_yaml

from orch.cli.nodes.check import survey_json, survey_lines
from orch.runner.hosts.checks.requirements import judge_host
from orch.runner.hosts.checks.types import CheckOptions, HostObservation, HostReport
from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.survey import Survey
from orch.runner.node_api.target import Target
from orch.spec.state import NodeState

FLEET = """\
type: fleet
name: lab
placement: cluster
ssh_config:
  hosts: ["gpu[1-4]"]
  network: {network}
"""


def write(folder: Folder, room: Room, text: str = FLEET) -> str:
    return folder.write("fleet.yml", text.format(network=room.fabric.subnet))


def check(folder: Folder, room: Room, *words: str) -> Said:
    return folder.orch("check", "fleet.yml", *words, env={"HOME": str(room.home), "COLUMNS": "110"})


def test_hosts_that_came_out_alike_share_a_column(folder: Folder, room: Room) -> None:
    write(folder, room)
    said = check(folder, room)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "fleet lab: 4 hosts"
    assert lines[1].split() == ["gpu[1-2]", "gpu[3-4]"]
    assert "  nvidia.driver     pass      skipped" in lines
    assert any(line.startswith("  gpu[3-4]  pass ") and "warn 1 rdma.devices" in line for line in lines)
    assert "warn rdma.devices ORCH383 on gpu[1-4]" in lines
    assert "skipped amd.driver on gpu[1-4]: no AMD GPU on this host" in lines


def test_a_failure_is_7_and_told_with_what_to_do(folder: Folder, room: Room) -> None:
    write(folder, room)
    with room.servers[0].lost_gpu(), room.servers[2].docker_stopped():
        said = check(folder, room)
        found = check(folder, room, "--json")
    assert (said.code, found.code) == (7, 7)
    assert said.out.splitlines()[1].split() == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert (
        "fail nvidia.driver ORCH372 on gpu1\n  7 NVIDIA GPUs answer, 8 are on the bus\n  hint: " in said.out
    )
    assert "fail docker.engine ORCH371 on gpu3\n" in said.out
    hosts = {host["host"]: {c["id"]: c for c in host["checks"]} for host in found.json["hosts"]}
    assert found.json["schema"] == 1
    assert list(hosts) == ["gpu1", "gpu2", "gpu3", "gpu4"]
    assert {len(checks) for checks in hosts.values()} == {21}
    assert set(hosts["gpu1"]["nvidia.driver"]) == {"id", "result", "detail", "hint"}
    assert hosts["gpu1"]["nvidia.driver"]["result"] == "fail"
    assert hosts["gpu3"]["docker.engine"]["hint"] == "sudo systemctl enable --now docker"
    assert hosts["gpu2"]["docker.engine"] == {
        "id": "docker.engine",
        "result": "pass",
        "detail": "Docker 20.10.24+dfsg1",
        "hint": None,
    }


def test_a_host_that_cannot_be_reached_does_not_hide_the_others(folder: Folder, room: Room) -> None:
    write(folder, room, FLEET + "  connect_timeout: 6s\n")
    with room.servers[1].ssh_stopped():
        said = check(folder, room)
    assert said.code == 7
    assert "fail ssh.connect ORCH364 on gpu2" in said.out
    assert "on gpu2: needs ssh.connect" in said.out
    assert "Traceback" not in said.err


def test_the_key_of_another_machine_is_a_failed_login(folder: Folder, room: Room) -> None:
    server = room.servers[0]
    hosts = f"  hosts:\n    - hostname: gpu1\n      host_key: {server.host_key}\n"
    write(folder, room, f"type: fleet\nname: one\nssh_config:\n{hosts}")
    assert check(folder, room).code == 0
    with server.other_host_key():
        said = check(folder, room)
    assert said.code == 7
    assert "fail ssh.connect ORCH363 on gpu1" in said.out
    assert said.out.count("SHA256:") == 2


@pytest.fixture
def local(folder: Folder) -> Iterator[Folder]:
    folder.write("fleet.yml", fleet_yaml("checked", 2))
    said = folder.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err
    yield folder
    folder.orch("down", "checked", "--yes")


def test_a_fleet_that_is_up_is_checked_by_name_whatever_it_is_made_of(local: Folder) -> None:
    said = local.orch("check", "checked")
    assert said.code == 0, said.out + said.err
    assert said.out.startswith("fleet checked: 2 hosts\n")
    assert "  net.mesh          " in said.out
    by_file = local.orch("check", "fleet.yml", "--json")
    assert [host["host"] for host in by_file.json["hosts"]] == ["checked-0", "checked-1"]


def test_a_fleet_that_is_not_up_has_no_hosts_to_check(folder: Folder) -> None:
    folder.write("fleet.yml", fleet_yaml("absent", 2))
    for target in ("fleet.yml", "absent"):
        said = folder.orch("check", target)
        assert said.code != 0
        assert "the fleet absent is not up" in said.err


def _survey(hosts: int) -> Survey:
    """Hosts of which each has something else amiss."""
    reports: list[HostReport] = []
    for at in range(hosts):
        facts = HostFacts(os="Linux", arch="x86_64", forwarding=("yes", "no")[at & 1])
        changes = {"root": "sudo" if at & 2 else "no", "machine_id": f"{at}" if at & 4 else None}
        facts = facts.model_copy(update=changes)
        name = f"node{at:02}"
        node = NodeState(index=at, name=name, address="10.0.0.1", user="u", host_key="k")
        checks = judge_host(HostObservation(name, facts=facts), CheckOptions())
        reports.append(HostReport(Target(node), facts, checks))
    return Survey(tuple(reports), None, ())


def test_a_matrix_wider_than_the_terminal_gives_way_to_the_counts() -> None:
    found = _survey(8)
    wide = survey_lines("f", found, width=200, colour=False)
    narrow = survey_lines("f", found, width=60, colour=False)
    assert any(line.startswith("  host.os ") for line in wide)
    assert not any(line.startswith("  host.os ") for line in narrow)
    assert any(line.startswith("  node00  pass ") for line in narrow)
    assert [host["host"] for host in survey_json(found)["hosts"]] == [f"node{at:02}" for at in range(8)]


def test_a_fleet_without_nodes_has_nothing_to_check() -> None:
    assert survey_lines("f", _survey(0), width=100, colour=False) == ["fleet f: 0 hosts"]


def test_colours_are_only_added_when_asked_for() -> None:
    assert not any("\x1b" in line for line in survey_lines("f", _survey(2), width=100, colour=False))
    assert any("\x1b[31mfail" in line for line in survey_lines("f", _survey(2), width=100, colour=True))
