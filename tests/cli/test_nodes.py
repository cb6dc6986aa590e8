"""`orch exec` and `orch ssh` on real servers, one of them behind a jump host."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hostlab import Client, Room

FLEET = "type: fleet\nname: rack\nssh_config:\n  connect_timeout: 5s\n  hosts: ['gpu[1-4]']\n"


@pytest.fixture(scope="module")
def rack(room: Room, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A fleet of gpu1 to gpu4, known by the user's ~/.ssh/config alone."""
    path = tmp_path_factory.mktemp("rack")
    (path / "orch.yml").write_text("project: tests\n")
    (path / "fleet.yml").write_text(FLEET)
    project = Client(path, room.home)
    said = project.orch("up", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.out + said.err
    yield project
    said = project.orch("down", "fleet.yml", "--yes", timeout=300)
    assert said.code == 0, said.err


def test_equal_output_is_shown_once_under_folded_names(rack: Client):
    said = rack.orch("exec", "rack", "--", "uname -s; id -un")
    assert (said.code, said.err) == (0, "")
    assert said.out == "gpu[1-4] (4):\n  Linux\n  ops\n"
    said = rack.orch("exec", "rack", "--", "hostname")
    assert said.out.splitlines() == [
        "gpu1:",
        "  gpu1",
        "gpu2:",
        "  gpu2",
        "gpu3:",
        "  gpu3",
        "gpu4:",
        "  gpu4",
    ]


def test_words_are_joined_for_the_nodes_shell_and_root_is_asked_for(rack: Client):
    said = rack.orch("exec", "rack", "--node", "gpu1", "--sudo", "--", "cd", "/etc;", "id", "-un;", "pwd")
    assert said.out == "gpu1:\n  root\n  /etc\n"


def test_nodes_are_chosen_by_name_folded_names_or_index(rack: Client):
    said = rack.orch("exec", "rack", "--node", "gpu[1-2]", "--node", "3", "--", "true")
    assert said.out == "gpu[1-2,4] (3):\n"
    said = rack.orch("exec", "rack", "--node", "gpu9", "--", "true")
    assert said.code == 2
    assert "no node named gpu9 in rack" in said.err
    assert rack.orch("exec", "nosuch", "--", "true").code != 0


def test_the_largest_exit_code_is_ours_and_errors_go_to_stderr(rack: Client):
    script = "case $(hostname) in gpu2) exit 3;; gpu4) echo bad >&2; exit 9;; esac; echo fine"
    said = rack.orch("exec", "rack", "--", script)
    assert said.code == 9
    assert said.out == "gpu[1,3] (2):\n  fine\ngpu2: exit code 3\ngpu4: exit code 9\n"
    assert said.err == "  bad\n"


def test_a_node_that_is_away_is_7_unless_another_ended_worse(rack: Client, room: Room):
    with room.servers[1].ssh_stopped():
        said = rack.orch("exec", "rack", "--", "true")
        assert said.code == 7
        assert said.out == "gpu[1,3-4] (3):\n"
        assert "gpu2: " in said.err
        assert "node gpu2 cannot be reached" in said.err
        assert "hint:" in said.err
        assert rack.orch("exec", "rack", "--", "exit 1").code == 7
        assert rack.orch("exec", "rack", "--", "exit 8").code == 8


def test_a_command_is_given_up_after_its_time_on_the_nodes_where_it_hangs(rack: Client):
    began = time.monotonic()
    said = rack.orch("exec", "rack", "--timeout", "8s", "--", "[ $(hostname) != gpu1 ] || sleep 60")
    assert time.monotonic() - began < 50
    assert said.code == 7
    assert said.out == "gpu[2-4] (3):\n"
    assert "gpu1" in said.err
    assert "longer than 8 s" in said.err
    assert rack.orch("exec", "rack", "--timeout", "soon", "--", "true").code == 2


def test_json_has_every_node_with_its_output_or_its_error(rack: Client, room: Room):
    with room.servers[2].ssh_stopped():
        said = rack.orch("exec", "rack", "--json", "--", "hostname; exit 4")
    assert said.code == 7
    first, _, away, last = said.json["nodes"]
    assert said.json["schema"] == 1
    assert (first["index"], first["node"], first["exit_code"], first["stdout"]) == (0, "gpu1", 4, "gpu1\n")
    assert (away["exit_code"], away["stdout"]) == (None, None)
    assert "node gpu3 cannot be reached" in away["error"]
    assert (last["node"], last["error"]) == ("gpu4", None)


@pytest.mark.parametrize("name", ["gpu1", "gpu4"])
def test_ssh_runs_the_real_ssh_directly_and_through_the_jump_host(rack: Client, name: str):
    said = rack.orch("ssh", name, "--", "-T", "hostname; id -un; exit 5")
    assert (said.code, said.out, said.err) == (5, f"{name}\nops\n", "")


def test_ssh_holds_to_the_pinned_host_key(rack: Client, room: Room):
    with room.servers[0].other_host_key():
        said = rack.orch("ssh", "gpu1", "--", "touch /tmp/must-not-exist")
    assert said.code == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in said.err
    assert room.servers[0].run("ls /tmp/must-not-exist", check=False) == ""
    assert rack.orch("ssh", "gpu1", "--", "true").code == 0


def test_ssh_to_a_node_that_is_none_tells_which_there_are(rack: Client):
    said = rack.orch("ssh", "gpu7")
    assert said.code == 2
    assert "no node named gpu7" in said.err
    assert "gpu[1-4]" in said.err
