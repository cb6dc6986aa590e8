"""User data: a cloud-config that holds what it should, and scripts a shell reads."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kit.clouds import cloudconfig
from kit.clouds.gcp_cases import Case

from orch.catalog.gcp.machines import software
from orch.components.gcp.userdata import MOST_BYTES

PLANNED = Case.planned()


def written(name: str) -> dict[str, str]:
    """Files of a node, by path."""
    text = Case.of(name).plan().cloud_init
    assert len(text.encode()) < MOST_BYTES / 4
    return {path: file.content for path, file in cloudconfig.files(text).items()}


PREPARE = "/var/lib/orch/prepare"


@pytest.mark.parametrize("name", PLANNED)
def test_a_shell_reads_the_scripts(name: str, tmp_path: Path) -> None:
    for path, content in written(name).items():
        if not (path == PREPARE or path.endswith(".sh")):
            continue
        script = tmp_path / "script"
        script.write_text(content)
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "fabric", "type_"),
    [
        ("a3-high", "tcpx", "a3-highgpu-8g"),
        ("a3-mega", "tcpxo", "a3-megagpu-8g"),
        ("a4", "gib", "a4-highgpu-8g"),
        ("a4x-max", "gib", "a4x-maxgpu-4g-metal"),
    ],
)
def test_receivers_and_plugins_start_in_their_pinned_version(name: str, fabric: str, type_: str) -> None:
    prepare = written(name)[PREPARE]
    parts = software(fabric, type_)
    assert parts
    for part in parts.values():
        assert part.reference in prepare
        assert part.version.startswith("v")


def test_the_receiver_of_tcpx_knows_which_interface_feeds_which_gpu() -> None:
    table = written("a3-high")["/var/lib/orch/gpu-queues.textproto"]
    assert table.count("gpu_infos") == 8
    assert table.count("queue_ids") == 32
    assert [line.split('"')[1] for line in table.splitlines() if "ifname" in line] == [
        f"eth{i}" for i in range(1, 5)
    ]


def test_rdma_devices_are_counted() -> None:
    assert "-ge 8 ]; }" in written("a3-ultra")[PREPARE]
    assert "-ge 4 ]; }" in written("a4x")[PREPARE]


def test_plain_nodes_start_nothing() -> None:
    prepare = written("cpu")[PREPARE]
    assert "orch-receiver" not in prepare
    assert "nvidia-smi" not in prepare
    assert "orch-receiver" not in written("ethernet")[PREPARE]


def boot(tmp_path: Path, instance: str) -> str:
    """What a machine does at a boot until it shows its host key, and what it shows."""
    text = Case.of("cpu").plan().cloud_init
    ((*shell, makes),) = cloudconfig.config(text)["bootcmd"]
    here = str(tmp_path / "orch")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "INSTANCE_ID": instance}
    subprocess.run([*shell, makes.replace("/var/lib/orch", here)], env=environment, check=True)
    prepare = cloudconfig.files(text)[PREPARE].content.replace("/var/lib/orch", here)
    curl = tmp_path / "curl"
    curl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n')
    curl.chmod(0o755)
    (show,) = [line for line in prepare.splitlines() if line.startswith("shows_key()")]
    script = f"METADATA=http://169.254.169.254/computeMetadata/v1/instance\n{show}\nshows_key"
    subprocess.run(["bash", "-euc", script], env=environment, check=True)
    *_, method, _, header, _, key, url = (tmp_path / "asked").read_text().splitlines()
    assert (method, header) == ("PUT", "Metadata-Flavor: Google")
    assert url.endswith("/computeMetadata/v1/instance/guest-attributes/orch/host-key")
    private = tmp_path / "orch" / "host_key" / "ed25519"
    assert private.stat().st_mode & 0o777 == 0o600
    derived = subprocess.run(["ssh-keygen", "-yf", private], capture_output=True, text=True, check=True)
    assert derived.stdout.split()[:2] == key.split()
    return key


def test_a_node_makes_its_host_key_once_and_shows_it_at_each_boot(tmp_path: Path) -> None:
    first = boot(tmp_path, "1")
    assert boot(tmp_path, "1") == first
    assert boot(tmp_path, "2") != first  # an image of a node brings its key along


def test_a_nodes_sshd_serves_the_key_that_it_shows(tmp_path: Path) -> None:
    text = Case.of("cpu").plan().cloud_init
    settings = cloudconfig.files(text)["/etc/ssh/sshd_config.d/10-orch.conf"].content
    assert "HostKey /var/lib/orch/host_key/ed25519\n" in settings
    assert "/var/lib/orch/host_key/ed25519" in cloudconfig.config(text)["bootcmd"][0][2]


def test_no_node_has_anything_that_another_has_not() -> None:
    """Whoever is root on a node and reads its metadata knows nothing of the others."""
    one, two = (Case.of("a3-mega") for _ in range(2))
    two.data["fleet"]["nodes"] = 40
    assert one.plan().cloud_init == two.plan().cloud_init
    assert "PRIVATE KEY" not in cloudconfig.text(one.plan().cloud_init)


def test_scripts_of_the_file_arrive_as_they_are() -> None:
    files = written("scripts")
    assert files["/var/lib/orch/init/00.sh"] == "apt-get install -y htop\n"
    assert files["/var/lib/orch/init/01.sh"] == "  curl $URL\n"
    assert files["/var/lib/orch/init/01.env"] == "export URL=http://mirror\n"
    assert "the instance has no local SSDs" in files[PREPARE]
