"""User data: a cloud-config that holds what it should, and scripts a shell reads."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Any

import cloudconfig
import pytest
import yaml
from aws_cases import Case, cases

from orch.components.aws.userdata import MOST_BYTES, packed
from orch.components.cloud.cloudinit import filled
from orch.components.cloud.host_keys import private_host_key, public_host_key

PLANNED = [name for name in cases() if not name.startswith("bad-")]


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


def test_keys_keep_their_lines() -> None:
    read = config("p5")
    assert read["ssh_keys"]["ed25519_private"] == "-----BEGIN-----\nabc\n-----END-----\n"
    assert read["users"][0] == {
        "name": "root",
        "lock_passwd": True,
        "ssh_authorized_keys": ["ssh-ed25519 BBBB me"],
    }


def test_more_keys_may_log_in() -> None:
    # Text that YAML would cut.
    mine = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICgvb9Y3p3xNiXFTVbkvO/VKx8MxZDOrCE0PMkkIMM9a ada: it # 1"
    case = Case.of("p5")
    case.data["fleet"]["authorized_keys"] = [mine]
    keys = {"host_key": "abc", "host_key_public": "ssh-ed25519 AAAA", "authorized_key": "ssh-ed25519 BBBB me"}
    read = yaml.safe_load(filled(case.plan().cloud_init, name="n-0", **keys))
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
def test_it_fits_what_aws_takes(name: str) -> None:
    text = Case.of(name).plan().cloud_init
    assert len(packed(text)) < MOST_BYTES / 2
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
