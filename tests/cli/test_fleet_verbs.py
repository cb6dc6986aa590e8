"""`orch cordon` and `orch fleet`, and tasks that do not fit a fleet, on two real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit.nodes.hostlab import Client, Room

FLEET = """\
type: fleet
name: rack
placement: cluster
ssh_config:
  network: NETWORK
  hosts:
    - hostname: gpu[1-2]
      blocks: auto
    - hostname: gpu3
"""


def fleet_of(room: Room) -> str:
    return FLEET.replace("NETWORK", room.fabric.subnet)


@pytest.fixture(scope="module")
def rack(room: Room, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A fleet of gpu1 and gpu2, each of eight blocks, and gpu3 without accelerators."""
    path = tmp_path_factory.mktemp("rack")
    (path / "orch.yml").write_text("project: tests\n")
    (path / "fleet.yml").write_text(fleet_of(room))
    project = Client(path, room.home)
    said = project.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.out + said.err
    yield project
    said = project.orch("down", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err


def statuses(project: Client) -> dict[str, tuple[str, str | None]]:
    nodes = project.orch("fleet", "show", "rack", "--json").json["fleets"][0]["nodes"]
    return {node["name"]: (node["status"], node["reason"]) for node in nodes}


def test_cordoned_nodes_are_shown_with_the_reason_until_it_is_undone(rack: Client):
    said = rack.orch("cordon", "gpu[1-2]", "--reason", "fan broken")
    assert (said.code, said.out) == (0, "gpu[1-2]: cordoned (fan broken)\n"), said.err
    found = statuses(rack)
    assert [status for status, _ in found.values()] == ["cordoned", "cordoned", "idle"]
    assert (found["gpu1"][1] or "").startswith("fan broken, by ")
    assert "cordoned (fan broken, by " in rack.orch("fleet").out
    assert rack.orch("fleet", "show", "rack", "--json").json["fleets"][0]["status"] == "active"

    rack_file = rack.write("train.yml", "type: task\nname: train\nnodes: 3\ncommands: [true]\n")
    said = rack.orch("run", rack_file)
    assert said.code == 9, said.out + said.err
    assert "2 nodes are cordoned: gpu1 (fan broken), gpu2 (fan broken)" in said.err
    assert "orch cordon --undo" in said.err

    said = rack.orch("cordon", "--undo", "gpu1", "gpu2", "--fleet", "rack")
    assert (said.code, said.out) == (0, "gpu[1-2]: may take jobs again\n"), said.err
    assert {status for status, _ in statuses(rack).values()} == {"idle"}


def test_a_node_that_cannot_be_reached_is_told_and_the_others_are_cordoned(rack: Client, room: Room):
    with room.servers[1].ssh_stopped():
        said = rack.orch("cordon", "gpu[1-2]")
        assert said.code == 7
        assert said.out == "gpu1: cordoned\n"
        assert "gpu2" in said.err
        assert rack.orch("cordon", "--undo", "gpu1").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gpu9",), "no node named gpu9 in rack"),
        (("gpu[1-",), "is not the name of nodes"),
        (("gpu1", "--undo", "--reason", "x"), "it goes with a cordon"),
    ],
)
def test_a_cordon_that_cannot_be_meant_is_a_wrong_command_line(
    rack: Client, words: tuple[str, ...], told: str
):
    said = rack.orch("cordon", *words)
    assert said.code == 2, said.err
    assert told in " ".join(said.err.split())


def test_the_verbose_table_has_all_that_is_known_of_a_node(rack: Client, room: Room):
    said = rack.orch("fleet", "show", "rack", "-v")
    assert said.code == 0, said.err
    head, first, _, third = said.out.splitlines()
    for heading in (
        "ZONE",
        "GPU",
        "CPUS",
        "MEMORY",
        "BLOCKS",
        "ADDRESS",
        "USER",
        "JUMP",
        "IP",
        "HOST KEY",
        "PRICE",
    ):
        assert heading in head
    server = room.servers[0]
    for text in ("8xH100 80GB", "0/8", f"127.0.0.1:{server.port}", "ops", "SHA256:", "idle"):
        assert text in first, first
    assert server.address(room.fabric) in first or server.address(room.front) in first
    assert "0/1" in third


@pytest.mark.parametrize(
    ("task", "told", "hint"),
    [
        (
            "nodes: 2\nresources: {gpu: 1}\n",
            "6:18: error ORCH242: a distributed task takes whole instances (all 8 blocks), but",
            "ask for `gpu: 8`",
        ),
        ("resources: {gpu: 9}\n", "node gpu1 has 8 GPUs, the task asks for 9", "change `resources.gpu`"),
    ],
)
def test_a_task_that_fits_no_node_is_told_where_it_says_so(rack: Client, task: str, told: str, hint: str):
    file = rack.write("misfit.yml", f"type: task\nname: misfit\ncommands: [true]\nimage: x\n{task}")
    said = rack.orch("run", file)
    assert said.code == 3, said.out + said.err
    assert told in said.err
    assert hint in said.err


def test_a_task_smaller_than_a_server_without_blocks_is_told_how_to_cut_it(rack: Client, room: Room):
    other = Client(rack.path / "other", room.home)
    other.path.mkdir()
    other.write("orch.yml", "project: other\n")
    text = fleet_of(room).replace("rack", "small").replace("auto", "1").replace("cluster", "any")
    other.write("fleet.yml", text.replace("    - hostname: gpu3\n", ""))
    said = other.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.out + said.err
    task = "type: task\nname: misfit\ncommands: [true]\nimage: x\n"
    said = other.orch("run", other.write("task.yml", f"{task}resources: {{gpu: 1}}\n"))
    assert said.code == 3, said.out + said.err
    assert "error ORCH243: no instance fits: a job takes the whole instance of 8 GPUs" in said.err
    assert "set `blocks: 8` on the fleet, or ask for `gpu: 1..8`" in said.err
    assert "fleet.yml:1:1" in said.err
    assert "fleet 'small'" in said.err
    said = other.orch("run", other.write("task.yml", f"{task}nodes: 2\n"))
    assert said.code == 3, said.out + said.err
    assert "error ORCH241: distributed tasks need a fleet with `placement: cluster`" in said.err
    assert "fleet 'small'" in said.err
    said = other.orch("down", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err


def test_blocks_that_do_not_divide_the_gpus_are_refused_when_they_are_found_out(rack: Client, room: Room):
    other = Client(rack.path / "uneven", room.home)
    other.path.mkdir()
    other.write("orch.yml", "project: uneven\n")
    other.write("fleet.yml", fleet_of(room).replace("rack", "uneven").replace("auto", "3"))
    said = other.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code != 0, said.out
    assert "8 GPUs do not split into 3 blocks" in said.out + said.err
    other.orch("down", "fleet.yml", "--yes", timeout=300)
