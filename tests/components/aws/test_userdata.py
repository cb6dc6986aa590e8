"""User data: a cloud-config that holds what it should, and scripts a shell reads."""

from __future__ import annotations

import email
import gzip
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds import cloudconfig
from kit.clouds.aws_cases import Case

from orch.components.aws.account.gather_facts import host_key_of
from orch.components.aws.planner import MOST_BYTES
from orch.components.cloud.machines.cloudinit import filled, packed, wrapped
from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.runner.preparation.mounts import CREATED

PLANNED = Case.planned()


def config(name: str) -> dict[str, Any]:
    return cloudconfig.config(Case.of(name).plan().cloud_init)


def written(name: str) -> dict[str, str]:
    """Files of a node, by path."""
    files = cloudconfig.files(Case.of(name).plan().cloud_init)
    return {path: file.content for path, file in files.items()}


@pytest.mark.parametrize("name", PLANNED)
def test_a_shell_reads_the_scripts(name: str, tmp_path: Path) -> None:
    files = written(name)
    for path in [path for path in files if path.startswith(("/usr/local/sbin/", "/var/lib/orch/"))]:
        script = tmp_path / "script"
        script.write_text(files[path])
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", PLANNED)
def test_what_each_node_of_a_thousand_repeats_in_the_state_has_no_comments(name: str) -> None:
    for path, content in written(name).items():
        if not path.startswith("/var/lib/orch/init/"):  # the user's own
            first, *lines = content.splitlines()
            assert not [line for line in lines if line.lstrip().startswith("#")], path
            assert path.endswith(("README", ".conf", ".service")) or first.startswith("#!"), path


def test_a_node_mounts_the_file_systems_that_were_created(tmp_path: Path) -> None:
    plan = Case.of("file-systems").plan()
    sources = ["fs-1.efs.us-east-1.amazonaws.com:/", "fs-2.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh"]
    mounted = list(zip(plan.file_systems, sources, strict=True))
    text = filled(plan.cloud_init, authorized_key="ssh-ed25519 BBBB me", file_systems=mounted)
    (file,) = [each for each in yaml.safe_load(text)["write_files"] if each["path"] == CREATED]
    (tmp_path / "created").write_bytes(b64decode(file["content"]))
    script = written("file-systems")["/var/lib/orch/init/00.sh"].replace(CREATED, str(tmp_path / "created"))
    wanted, _, _ = script.partition("own | sed")
    done = subprocess.run(
        ["bash", "-c", f'{wanted}\nprintf %s "$WANTED"', "/run/orch-init-1/00.sh"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split(" ")[:3] for line in done.stdout.splitlines()] == [
        [sources[0], "/shared", "nfs4"],
        [sources[1], "/fast", "lustre"],
    ]


def test_keys_keep_their_lines() -> None:
    read = config("p5")
    assert read["users"][0] == {
        "name": "root",
        "lock_passwd": True,
        "ssh_authorized_keys": ["ssh-ed25519 BBBB me"],
    }


def test_a_node_makes_its_host_key_and_shows_it_on_its_console(tmp_path: Path) -> None:
    """Before anything of the file runs there, and in the form in which it is read."""
    read = config("p5")
    assert "ssh_keys" not in read
    assert "hostname" not in read
    assert (read["ssh_deletekeys"], read["ssh_genkeytypes"]) == (True, ["ed25519"])
    (_, _, show), *rest = read["runcmd"]
    assert rest[-1] == ["systemctl", "enable", "--now", "orch-prepare.service"]
    subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    here = show.replace("/etc/ssh/ssh_host_ed25519_key", str(tmp_path / "key"))
    console = tmp_path / "console"
    subprocess.run(["sh", "-c", here.replace("/dev/console", str(console))], check=True)
    public = " ".join((tmp_path / "key.pub").read_text().split()[:2])
    assert host_key_of("[ 0.1] Linux\r\n" + console.read_text() + "\r\nlogin:") == public


def test_no_node_has_anything_that_another_has_not() -> None:
    """Whoever is root on a node and reads its user data knows nothing of the others."""
    one, two = (Case.of("p5") for _ in range(2))
    two.data["fleet"]["nodes"] = 40
    assert one.plan().cloud_init == two.plan().cloud_init
    assert "PRIVATE KEY" not in cloudconfig.text(one.plan().cloud_init)


@pytest.mark.parametrize(
    "console",
    [
        "",
        "-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI",
        "-----BEGIN SSH HOST KEY KEYS-----\nssh-rsa AAAAB3Nz root@a\n-----END SSH HOST KEY KEYS-----",
        f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43} root@a\n",
    ],
    ids=["nothing", "cut off", "of another kind", "outside of a block"],
)
def test_a_console_without_a_whole_key_tells_none(console: str) -> None:
    assert host_key_of(console) is None


def test_the_key_of_the_boot_counts_and_not_what_is_printed_later() -> None:
    first, later = (
        f"-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43} root@a\n"
        "-----END SSH HOST KEY KEYS-----\n"
        for letter in "AB"
    )
    found = host_key_of(first + later)
    assert found is not None
    assert found.endswith("A" * 43)


def test_user_data_is_text_that_cloud_init_unpacks() -> None:
    text = Case.of("p5").plan().cloud_init
    (part,) = email.message_from_string(wrapped(text)).get_payload()
    assert part.get_content_type() == "application/gzip"
    assert gzip.decompress(part.get_payload(decode=True)).decode() == text
    assert wrapped(text).isascii()


def test_more_keys_may_log_in() -> None:
    # Text that YAML would cut.
    mine = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICgvb9Y3p3xNiXFTVbkvO/VKx8MxZDOrCE0PMkkIMM9a ada: it # 1"
    case = Case.of("p5")
    case.data["fleet"]["authorized_keys"] = [mine]
    read = yaml.safe_load(filled(case.plan().cloud_init, authorized_key="ssh-ed25519 BBBB me"))
    assert read["users"][0]["ssh_authorized_keys"] == ["ssh-ed25519 BBBB me", mine]


def test_a_runner_sees_that_the_preparation_is_to_come() -> None:
    """The folder is there before the script that says what it found."""
    assert [path for path in written("cpu") if path.startswith("/var/lib/orch/boot/")]


def test_efa_devices_are_counted_and_memory_may_be_locked() -> None:
    files = written("p5")
    assert "-ge 32 ]" in files["/usr/local/sbin/orch-prepare"]
    assert "* soft memlock unlimited" in files["/etc/security/limits.d/90-orch.conf"]
    assert "vm.nr_hugepages" in files["/etc/sysctl.d/90-orch.conf"]


def test_plain_nodes_look_for_no_devices() -> None:
    files = written("cpu-apart")
    assert "/sys/class/infiniband" not in files["/usr/local/sbin/orch-prepare"]
    assert "nvidia-smi" not in files["/usr/local/sbin/orch-prepare"]
    assert "/etc/sysctl.d/90-orch.conf" not in files


def test_scripts_of_the_file_arrive_as_they_are() -> None:
    files = written("scripts")
    assert files["/var/lib/orch/init/00.sh"] == "apt-get install -y htop\n"
    assert files["/var/lib/orch/init/01.sh"] == "  curl $URL\n"
    assert files["/var/lib/orch/init/01.env"] == "export URL=http://mirror\n"
    assert "mkfs.ext4" in files["/usr/local/sbin/orch-prepare"]


@pytest.mark.parametrize("name", PLANNED)
def test_it_leaves_room_for_the_init_steps_of_a_user_in_what_aws_takes(name: str) -> None:
    text = Case.of(name).plan().cloud_init
    assert len(wrapped(text)) < MOST_BYTES - 7_500
    assert gzip.decompress(packed(text)).decode() == text
    assert packed(text) == packed(text)


def test_openssh_reads_the_host_key(tmp_path: Path) -> None:
    seed = "5a" * 32
    file = tmp_path / "key"
    file.write_text(private_host_key(seed, "p5-0"))
    file.chmod(0o600)
    read = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(file)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert " ".join(read[:2]) == public_host_key(seed, "p5-0")
    assert private_host_key(seed, "p5-0") == private_host_key(seed, "p5-0")
