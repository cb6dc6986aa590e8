"""The requirements of a host, one row each, and judging a host by them.

The rows are in the order of the reference; codes ORCH364 to ORCH384 follow it. A check whose precondition did
not pass is skipped, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch.runner.hosts.checks import devices
from orch.runner.hosts.checks import machine as host
from orch.runner.hosts.checks.types import CheckResult, Judge, Observed, Outcome, Result, Wanted, skipped
from orch.runner.hosts.host_facts import Unread, Vendor

FIRST_CODE = 364


@dataclass(frozen=True)
class Check:
    """One requirement. `needs` are checks that must not have failed; `hint` is what to do about it.

    A check with a `vendor` is for hosts with that vendor's accelerators only.
    """

    id: str
    requires: str
    judge: Judge | None
    hint: str
    needs: tuple[str, ...] = ()
    vendor: Vendor | None = None


CHECKS = (
    Check(
        "ssh.connect",
        "the host lets this login in over SSH",
        None,
        "check the address, the firewall, `user` and `identity_file`: `ssh -v USER@HOST` tells more",
    ),
    Check(
        "ssh.forwarding",
        "sshd forwards connections",
        host.forwarding,
        "set `AllowTcpForwarding yes` in /etc/ssh/sshd_config, then `sudo systemctl reload ssh`",
    ),
    Check(
        "sudo.nopasswd",
        "the login is root, or sudo asks for no password",
        host.sudo,
        'on it: `echo "$USER ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/orch`',
    ),
    Check("host.os", "Linux on x86_64 or aarch64", host.system, "use another host"),
    Check(
        "host.unique",
        "no other host has the same /etc/machine-id",
        host.unique,
        "list a host once; on a cloned image: `sudo rm /etc/machine-id && sudo systemd-machine-id-setup`",
    ),
    Check(
        "host.disk",
        "space for images where Docker keeps them",
        host.disk,
        "free some, or move Docker's data: `data-root` in /etc/docker/daemon.json",
    ),
    Check("host.clock", "the time of this machine", host.clock, "sudo timedatectl set-ntp true"),
    Check(
        "docker.engine",
        "the Docker server answers",
        host.docker,
        "sudo systemctl enable --now docker",
    ),
    Check(
        "nvidia.driver",
        "all NVIDIA GPUs answer, with CUDA 12.1 or later",
        devices.nvidia_driver,
        "install a driver of 530.30 or later (`sudo apt-get install -y nvidia-driver-570-server`) and reboot",
        vendor="nvidia",
    ),
    Check(
        "nvidia.toolkit",
        "Docker knows NVIDIA's runtime",
        devices.nvidia_toolkit,
        "install the NVIDIA Container Toolkit (`sudo apt-get install -y nvidia-container-toolkit`), then "
        "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`",
        needs=("docker.engine",),
        vendor="nvidia",
    ),
    Check(
        "nvidia.container",
        "a container sees all NVIDIA GPUs",
        devices.nvidia_container,
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        needs=("docker.engine", "nvidia.driver", "nvidia.toolkit"),
        vendor="nvidia",
    ),
    Check(
        "amd.driver",
        "the AMDGPU-DKMS driver is loaded",
        devices.amd_driver,
        "sudo apt-get install -y amdgpu-dkms && sudo reboot",
        vendor="amd",
    ),
    Check(
        "gaudi.driver",
        "all Gaudi cards answer",
        devices.gaudi_driver,
        "install Intel Gaudi's driver and software: `sudo ./habanalabs-installer.sh install --type base`",
        vendor="intel",
    ),
    Check(
        "gaudi.runtime",
        "Docker knows Gaudi's runtime",
        devices.gaudi_runtime,
        "sudo apt-get install -y habanalabs-container-runtime, then name the runtime `habana` in "
        "/etc/docker/daemon.json and `sudo systemctl restart docker`",
        needs=("docker.engine",),
        vendor="intel",
    ),
    Check(
        "tt.driver",
        "all Tenstorrent cards answer",
        devices.tenstorrent_driver,
        "install Tenstorrent's driver (tt-kmd) and tt-smi, and reboot",
        vendor="tenstorrent",
    ),
    Check(
        "tt.hugepages",
        "huge pages are set aside",
        devices.hugepages,
        "install tenstorrent-tools and `sudo systemctl enable --now tenstorrent-hugepages.service`",
        vendor="tenstorrent",
    ),
    Check(
        "fw.external",
        "only SSH is open to the outside",
        host.external,
        "allow only SSH from outside: `sudo ufw allow OpenSSH && sudo ufw default deny && sudo ufw enable`",
    ),
    Check(
        "net.internal",
        "an address of its own in one private network, one MTU",
        host.internal,
        "set `network` or `internal_ip` in `ssh_config`",
    ),
    Check(
        "net.mesh",
        "each host of a cluster reaches each other one on every port",
        host.mesh,
        "let the hosts talk to each other on all ports: `sudo ufw allow from NETWORK`",
    ),
    Check(
        "rdma.devices",
        "the hosts of a cluster have the same RDMA ports",
        devices.rdma,
        "install or load the fabric's driver (DOCA-OFED, EFA), and see to cables and switch ports",
    ),
    Check(
        "gpu.health",
        "DCGM tells of the GPUs' health",
        devices.gpu_health,
        "sudo apt-get install -y datacenter-gpu-manager && sudo systemctl enable --now nvidia-dcgm",
        needs=("nvidia.driver",),
        vendor="nvidia",
    ),
)

CODE_OF = {check.id: f"ORCH{FIRST_CODE + at}" for at, check in enumerate(CHECKS)}


def judge_host(observed: Observed, wanted: Wanted) -> tuple[CheckResult, ...]:
    """Every check of one host, in the order of CHECKS."""
    done: dict[str, CheckResult] = {}
    for check in CHECKS:
        outcome = _judged(check, done, observed, wanted)
        unread = observed.facts.unread if observed.facts is not None else ()
        done[check.id] = _result(check, _with_doubts(check, outcome, unread))
    return tuple(done.values())


def _judged(check: Check, done: dict[str, CheckResult], observed: Observed, wanted: Wanted) -> Outcome:
    if check.judge is None:
        return host.connect(observed)
    if observed.facts is None:
        return skipped("needs ssh.connect")
    if check.vendor is not None and not devices.has(observed.facts, check.vendor):
        return skipped(f"no {devices.NOUNS[check.vendor]} on this host")
    unmet = next((need for need in check.needs if not _met(done[need])), None)
    return skipped(f"needs {unmet}") if unmet else check.judge(observed.facts, observed, wanted)


def _with_doubts(check: Check, outcome: Outcome, unread: Sequence[Unread]) -> Outcome:
    """What could not be read of a host's answer is told with the check that would have needed it."""
    told = [
        f"what {each.tool} said cannot be read ({each.why})"
        for each in unread
        if _NEEDED_BY.get(each.part) == check.id
    ]
    if not told:
        return outcome
    result = outcome.result if outcome.result is Result.FAIL else Result.WARN
    return replace(outcome, result=result, detail="; ".join([outcome.detail, *dict.fromkeys(told)]))


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
"""The check that a part of a host's answer is for."""


def _met(result: CheckResult) -> bool:
    return result.result in (Result.PASS, Result.WARN)


def _result(check: Check, outcome: Outcome) -> CheckResult:
    amiss = outcome.result in (Result.WARN, Result.FAIL)
    return CheckResult(
        check.id,
        outcome.result,
        outcome.detail,
        (outcome.hint or check.hint) if amiss else None,
        (outcome.code or CODE_OF[check.id]) if amiss else None,
    )
