"""The requirements of a host, one row each, and judging a host by them.

The rows are in the order of the reference; codes ORCH364 to ORCH384 follow it. A check whose precondition
failed is skipped, and names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch.runner.hosts.checks import devices
from orch.runner.hosts.checks import machine as host
from orch.runner.hosts.checks.types import (
    CheckOptions,
    CheckResult,
    HostObservation,
    Judge,
    Outcome,
    Result,
    skipped,
)
from orch.runner.hosts.host_facts import UnreadOutput, Vendor

FIRST_CODE = 364


@dataclass(frozen=True)
class HostCheck:
    """One requirement. `needs` are checks that must pass first; `hint` says what to do about a failure.

    A check with a `vendor` is for hosts with that vendor's accelerators only.
    """

    id: str
    requires: str
    judge: Judge | None
    hint: str
    needs: tuple[str, ...] = ()
    vendor: Vendor | None = None


CHECKS = (
    HostCheck(
        "ssh.connect",
        "the host lets this login in over SSH",
        None,
        "check the address, the firewall, `user` and `identity_file`: `ssh -v USER@HOST` tells more",
    ),
    HostCheck(
        "ssh.forwarding",
        "sshd forwards connections",
        host.forwarding,
        "set `AllowTcpForwarding yes` in /etc/ssh/sshd_config, then `sudo systemctl reload ssh`",
    ),
    HostCheck(
        "sudo.nopasswd",
        "the login is root, or sudo asks for no password",
        host.sudo,
        'on it: `echo "$USER ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/orch`',
    ),
    HostCheck("host.os", "Linux on x86_64 or aarch64", host.system, "use another host"),
    HostCheck(
        "host.unique",
        "no other host has the same /etc/machine-id",
        host.unique,
        "list a host once; on a cloned image: `sudo rm /etc/machine-id && sudo systemd-machine-id-setup`",
    ),
    HostCheck(
        "host.disk",
        "space for images where Docker keeps them",
        host.disk,
        "free some, or move Docker's data: `data-root` in /etc/docker/daemon.json",
    ),
    HostCheck("host.clock", "the time of this machine", host.clock, "sudo timedatectl set-ntp true"),
    HostCheck(
        "docker.engine",
        "the Docker server answers",
        host.docker,
        "sudo systemctl enable --now docker",
    ),
    HostCheck(
        "nvidia.driver",
        "all NVIDIA GPUs answer, with CUDA 12.1 or later",
        devices.nvidia_driver,
        "install a driver of 530.30 or later (`sudo apt-get install -y nvidia-driver-570-server`) and reboot",
        vendor="nvidia",
    ),
    HostCheck(
        "nvidia.toolkit",
        "Docker knows NVIDIA's runtime",
        devices.nvidia_toolkit,
        "install the NVIDIA Container Toolkit (`sudo apt-get install -y nvidia-container-toolkit`), then "
        "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`",
        needs=("docker.engine",),
        vendor="nvidia",
    ),
    HostCheck(
        "nvidia.container",
        "a container sees all NVIDIA GPUs",
        devices.nvidia_container,
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        needs=("docker.engine", "nvidia.driver", "nvidia.toolkit"),
        vendor="nvidia",
    ),
    HostCheck(
        "amd.driver",
        "the AMDGPU-DKMS driver is loaded",
        devices.amd_driver,
        "sudo apt-get install -y amdgpu-dkms && sudo reboot",
        vendor="amd",
    ),
    HostCheck(
        "gaudi.driver",
        "all Gaudi cards answer",
        devices.gaudi_driver,
        "install Intel Gaudi's driver and software: `sudo ./habanalabs-installer.sh install --type base`",
        vendor="intel",
    ),
    HostCheck(
        "gaudi.runtime",
        "Docker knows Gaudi's runtime",
        devices.gaudi_runtime,
        "sudo apt-get install -y habanalabs-container-runtime, then name the runtime `habana` in "
        "/etc/docker/daemon.json and `sudo systemctl restart docker`",
        needs=("docker.engine",),
        vendor="intel",
    ),
    HostCheck(
        "tt.driver",
        "all Tenstorrent cards answer",
        devices.tenstorrent_driver,
        "install Tenstorrent's driver (tt-kmd) and tt-smi, and reboot",
        vendor="tenstorrent",
    ),
    HostCheck(
        "tt.hugepages",
        "huge pages are set aside",
        devices.hugepages,
        "install tenstorrent-tools and `sudo systemctl enable --now tenstorrent-hugepages.service`",
        vendor="tenstorrent",
    ),
    HostCheck(
        "fw.external",
        "only SSH is open to the outside",
        host.external,
        "allow only SSH from outside: `sudo ufw allow OpenSSH && sudo ufw default deny && sudo ufw enable`",
    ),
    HostCheck(
        "net.internal",
        "an address of its own in one private network, one MTU",
        host.internal,
        "set `network` or `internal_ip` in `ssh_config`",
    ),
    HostCheck(
        "net.mesh",
        "each host of a cluster reaches each other one on every port",
        host.mesh,
        "let the hosts talk to each other on all ports: `sudo ufw allow from NETWORK`",
    ),
    HostCheck(
        "rdma.devices",
        "the hosts of a cluster have the same RDMA ports",
        devices.rdma,
        "install or load the fabric's driver (DOCA-OFED, EFA), and see to cables and switch ports",
    ),
    HostCheck(
        "gpu.health",
        "DCGM tells of the GPUs' health",
        devices.gpu_health,
        "sudo apt-get install -y datacenter-gpu-manager && sudo systemctl enable --now nvidia-dcgm",
        needs=("nvidia.driver",),
        vendor="nvidia",
    ),
)

CODE_OF = {check.id: f"ORCH{FIRST_CODE + at}" for at, check in enumerate(CHECKS)}


def judge_host(observation: HostObservation, options: CheckOptions) -> tuple[CheckResult, ...]:
    """Every check of one host, in the order of CHECKS."""
    done: dict[str, CheckResult] = {}
    for check in CHECKS:
        outcome = _outcome(check, done, observation, options)
        unread = observation.facts.unread if observation.facts is not None else ()
        done[check.id] = _result(check, _with_unreadable_output(check, outcome, unread))
    return tuple(done.values())


def _outcome(
    check: HostCheck, done: dict[str, CheckResult], observation: HostObservation, options: CheckOptions
) -> Outcome:
    if check.judge is None:
        return host.connect(observation)
    if observation.facts is None:
        return skipped("needs ssh.connect")
    if check.vendor is not None and not devices.has(observation.facts, check.vendor):
        return skipped(f"no {devices.NOUNS[check.vendor]} on this host")
    failed_need = next((need for need in check.needs if not _passed(done[need])), None)
    return (
        skipped(f"needs {failed_need}")
        if failed_need
        else check.judge(observation.facts, observation, options)
    )


def _with_unreadable_output(check: HostCheck, outcome: Outcome, unread: Sequence[UnreadOutput]) -> Outcome:
    """The outcome with the parts of the host's output that this check needs and that cannot be parsed."""
    unreadable = [
        f"what {each.tool} said cannot be read ({each.why})"
        for each in unread
        if _NEEDED_BY.get(each.part) == check.id
    ]
    if not unreadable:
        return outcome
    result = outcome.result if outcome.result is Result.FAIL else Result.WARN
    return replace(outcome, result=result, detail="; ".join([outcome.detail, *dict.fromkeys(unreadable)]))


_NEEDED_BY = {
    "root": "sudo.nopasswd",
    "system": "host.os",
    "now": "host.clock",
    "disks": "host.disk",
    "docker": "docker.engine",
    "nvidia": "nvidia.driver",
    "nvidia.ctk": "nvidia.toolkit",
    "amd.smi": "amd.driver",
    "amd": "amd.driver",
    "gaudi": "gaudi.driver",
    "tt.smi": "tt.driver",
    "tt": "tt.driver",
    "pci": "host.os",
    "sshd": "ssh.forwarding",
    "net": "net.internal",
    "rdma": "rdma.devices",
}
"""Section of the facts script -> the check that needs it."""


def _passed(result: CheckResult) -> bool:
    return result.result in (Result.PASS, Result.WARN)


def _result(check: HostCheck, outcome: Outcome) -> CheckResult:
    has_problem = outcome.result in (Result.WARN, Result.FAIL)
    return CheckResult(
        check.id,
        outcome.result,
        outcome.detail,
        (outcome.hint or check.hint) if has_problem else None,
        (outcome.code or CODE_OF[check.id]) if has_problem else None,
    )
