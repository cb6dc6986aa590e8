"""What a pod runs first: SSH answers in images with a server and without, and a pod that cannot have one says
why."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.nodes.labmachine import docker, wait_until
from kit.nodes.podlab import PodLab, greets, pod_lab
from kit.support import free_port

from orch import images
from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.components.runpod.resources import arguments, bootstrap, docker_arguments
from orch.runner.node_api.commands import Command
from orch.runner.ssh.pool import SshConnector

SEED = "5e" * 32
PUBLIC = public_host_key(SEED, "x")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodLab]:
    with pod_lab(tmp_path_factory.mktemp("pods")) as lab:
        yield lab


def log_of(container: str) -> str:
    """What a container says, both streams."""
    words = ["docker", "logs", container]
    return subprocess.run(words, stdout=-1, stderr=subprocess.STDOUT, text=True, check=True).stdout


def test_the_command_is_a_string_without_anything_to_split_or_expand(tmp_path: Path) -> None:
    text = bootstrap([PUBLIC], host_key=private_host_key(SEED, "x"))
    program, flag, code = shlex.split(arguments(text))
    assert (program, flag) == ("sh", "-c")
    assert not set(code) & set("$`*?[\\\"'~")
    assert json.loads(docker_arguments(text)) == {"cmd": [code], "entrypoint": ["/bin/sh", "-c"]}
    # Elsewhere, and read instead of run.
    subprocess.run(
        ["sh", "-c", code.replace("/var/lib", str(tmp_path)).replace("exec sh", "cat")], check=True
    )
    file = tmp_path / "orch/first.sh"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o600)


@pytest.mark.parametrize("key", [private_host_key(SEED, "x"), f"{PUBLIC}\n{PUBLIC}", "", "two words"])
def test_only_public_keys_log_in(key: str) -> None:
    with pytest.raises(ValueError, match="public keys"):
        bootstrap([PUBLIC, key])


def test_a_pod_of_an_image_with_a_server_is_logged_in_to_by_the_key_that_is_known(lab: PodLab) -> None:
    node = lab.pod(image="orch/mpi", env={"RUNPOD_POD_ID": "a1"})
    connector = SshConnector(connect_timeout_s=8.0, deadline_s=20.0)
    try:
        told = connector.run(node, Command("id -un; umask; tr '\\0' '\\n' < /proc/1/environ")).stdout.split()
        # It is started again when it ends, as when memory is short; connections outlive that.
        ended = connector.run(node, Command("pkill -o -x sshd; pgrep -o -x sshd || echo none")).stdout
        wait_until(lambda: log_of(node.name).count("SSH server begins on port 22") == 2, "it begins again")
        connector.drop(node)
        again = connector.run(node, Command("echo here")).stdout
    finally:
        connector.close()
    assert told[:2] == ["root", "0022"]
    assert "RUNPOD_POD_ID=a1" in told
    assert ended.strip() != ""
    assert again == "here\n"
    assert node.ssh.host_key in log_of(node.name)
    # Who looks at the pod's processes does not see the host's private key.
    shown = docker("exec", node.name, "ps", "-o", "args=", "-p", "1")
    assert shown == "sh /var/lib/orch/first.sh"


def test_a_server_that_is_missing_is_installed_by_the_images_package_manager(lab: PodLab) -> None:
    # A package manager that brings the program as apt does, after an index that fails once.
    apt = r"""#!/bin/sh
case $1 in
  update) [ -e /tmp/tried ] || { : > /tmp/tried; exit 100; };;
  install) echo "got $*, services: $(tail -n 1 /usr/sbin/policy-rc.d)"; mv /opt/sshd /usr/sbin/sshd;;
esac
"""
    hide = (
        "rm /usr/sbin/policy-rc.d; mv /usr/sbin/sshd /opt/sshd; "
        f"printf %s {shlex.quote(apt)} > /usr/bin/apt-get; "
        "sed -i 's/^root:[^:]*/root:!/' /etc/shadow; "
    )
    port = free_port()
    text = hide + bootstrap([lab.public]).replace("sleep 20", "sleep 1")
    name = lab.start(image=images.resolve("orch/mpi"), command=arguments(text), port=port)
    wait_until(lambda: greets(port), "the SSH server greets")
    said = log_of(name)
    assert "this pod cannot be reached yet: openssh-server could not be installed; trying again" in said
    assert "got install -qy --no-install-recommends openssh-server, services: exit 101" in said
    (shown,) = re.findall(r"host key (ssh-ed25519 \S+)", said)
    assert shown in docker("exec", name, "ssh-keygen", "-y", "-f", "/var/lib/orch/ssh/host_key")
    assert docker("exec", name, "grep", "root", "/etc/shadow").startswith("root:*:")
    assert not docker("exec", name, "sh", "-c", "ls /usr/sbin/policy-rc.d 2>/dev/null || true")


def test_a_pod_without_server_and_package_manager_says_so_and_stays(lab: PodLab) -> None:
    hide = "rm /usr/sbin/sshd /usr/bin/apt-get; "
    name = lab.start(
        image=images.resolve("orch/mpi"), command=arguments(hide + bootstrap([lab.public])), port=free_port()
    )
    wait_until(lambda: "no package manager" in log_of(name), "it says so")
    assert "use an image with openssh-server in it" in log_of(name)
    assert docker("inspect", "-f", "{{.State.Running}}", name) == "true"
