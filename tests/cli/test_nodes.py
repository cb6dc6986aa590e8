"""`orch exec` and `orch ssh` on real servers, one of them behind a jump host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.hostlab import Client, Room
from kit.support import ROOT

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


def test_nodes_are_asked_so_many_at_a_time_and_no_more_after_one_fails(rack: Client):
    text = "echo here; [ $(hostname) != gpu2 ]"
    said = rack.orch("exec", "rack", "--serial", "1", "--", text)
    assert said.code == 1
    assert said.out == "gpu1:\n  here\ngpu2: exit code 1\n  here\n"
    assert said.err == "stopped: it was not run on 2 of 4 nodes, gpu3 is the next\n"
    said = rack.orch("exec", "rack", "--serial", "50%", "--json", "--", text)
    assert said.code == 1
    assert [each["node"] for each in said.json["nodes"]] == ["gpu1", "gpu2"]
    said = rack.orch("exec", "rack", "--serial", "1%", "--node", "gpu[3-4]", "--", "true")
    assert (said.code, said.out) == (0, "gpu3:\ngpu4:\n")


@pytest.mark.parametrize("serial", ["0", "101%", "ten", "5%%", "-1", ""])
def test_a_wrong_number_of_nodes_at_a_time_is_refused(rack: Client, serial: str):
    said = rack.orch("exec", "rack", f"--serial={serial}", "--", "true")
    assert said.code == 2
    assert "--serial" in said.err


def test_the_inventory_is_what_ansible_asks_for(rack: Client):
    said = rack.orch("inventory", "--list")
    assert (said.code, said.err) == (0, "")
    assert said.json["fleet_rack"] == {"hosts": ["gpu1", "gpu2", "gpu3", "gpu4"]}
    assert said.json["all"] == {"children": ["fleet_rack", "backend_ssh"]}
    variables = said.json["_meta"]["hostvars"]["gpu4"]
    assert (variables["orch_fleet"], variables["orch_index"]) == ("rack", 3)
    assert rack.orch("inventory", "--host", "gpu4").json == variables
    said = rack.orch("inventory", "--host", "gpu9")
    assert said.code == 2
    assert "no node of a fleet that is up is named gpu9" in said.err


def ansible(rack: Client, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent
    path = f"{scripts}:{os.environ['PATH']}"
    # A connection that is kept would not see another host key.
    ssh = {"ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    more = {"PATH": path, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0", **ssh}
    return subprocess.run(
        [str(scripts / program), "-i", "inventory.sh", *words],
        cwd=rack.path,
        env={**os.environ, **rack.environment, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def playbooks(rack: Client) -> Client:
    """The files of the example beside the fleet's, and on each server a package with a newer version."""
    for name in ("inventory.sh", "upgrade.yml"):
        shutil.copy(ROOT / "examples" / "ansible" / name, rack.path / name)
    said = rack.orch("exec", "rack", "--sudo", "--", NEWER_PACKAGE)
    assert said.code == 0, said.err
    return rack


NEWER_PACKAGE = r"""
set -e
mkdir -p /srv/repository && cd /srv/repository
for version in 1.0 2.0; do
    mkdir -p p/DEBIAN
    printf 'Package: fabric-tool\nVersion: %s\nArchitecture: all\nMaintainer: a\nDescription: b\n' $version \
        > p/DEBIAN/control
    dpkg-deb --build p fabric-tool_$version.deb
    [ $version = 2.0 ] || dpkg -i fabric-tool_$version.deb
done
{ dpkg-deb --field fabric-tool_2.0.deb; echo Filename: ./fabric-tool_2.0.deb
  echo "Size: $(stat -c %s fabric-tool_2.0.deb)"
  echo "SHA256: $(sha256sum fabric-tool_2.0.deb | cut -d ' ' -f 1)"; } > Packages
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/repository ./' > /etc/apt/sources.list
"""


def test_ansible_reaches_all_nodes_by_their_pinned_ways(playbooks: Client, room: Room):
    done = ansible(playbooks, "ansible", "fleet_rack", "-m", "ansible.builtin.raw", "-a", "hostname")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"^(gpu\d) \| CHANGED.*\n(gpu\d)", done.stdout, re.MULTILINE)) == [
        (name, name) for name in ("gpu1", "gpu2", "gpu3", "gpu4")
    ]
    with room.servers[0].other_host_key():
        done = ansible(
            playbooks, "ansible", "gpu1", "-m", "ansible.builtin.raw", "-a", "touch /tmp/wrong-key"
        )
    assert done.returncode != 0
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stdout
    assert room.servers[0].run("ls /tmp/wrong-key", check=False) == ""


@pytest.mark.timeout(900)  # each batch calls orch three times a node
def test_the_example_upgrades_a_package_in_batches_and_stops_where_it_fails(playbooks: Client, room: Room):
    words = ("upgrade.yml", "-e", "fleet=rack", "-e", "package=fabric-tool")
    # The repository of the second server is broken.
    room.servers[1].run("sudo mv /srv/repository/Packages /srv/repository/away")
    done = ansible(playbooks, "ansible-playbook", *words)
    assert done.returncode != 0
    versions = playbooks.orch("exec", "rack", "--", "dpkg-query -W -f '${Version}' fabric-tool")
    assert "Failed to update apt cache" in done.stdout + done.stderr
    assert versions.out == "gpu1:\n  2.0\ngpu[2-4] (3):\n  1.0\n"
    shown = playbooks.orch("fleet", "show", "rack", "--json").json["fleets"][0]["nodes"]
    assert {each["name"]: each["status"] for each in shown} == {
        "gpu1": "idle",
        "gpu2": "cordoned",
        "gpu3": "idle",
        "gpu4": "idle",
    }
    room.servers[1].run("sudo mv /srv/repository/away /srv/repository/Packages")
    done = ansible(playbooks, "ansible-playbook", *words, "--limit", "gpu2,gpu4")
    assert done.returncode == 0, done.stdout + done.stderr
    versions = playbooks.orch("exec", "rack", "--", "dpkg-query -W -f '${Version}' fabric-tool")
    assert versions.out == "gpu[1-2,4] (3):\n  2.0\ngpu3:\n  1.0\n"
    shown = playbooks.orch("fleet", "show", "rack", "--json").json["fleets"][0]["nodes"]
    assert {each["status"] for each in shown} == {"idle"}
