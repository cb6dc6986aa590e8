"""The values that checks work on: a host, their options, what was observed of it, and their results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.network import ClusterNetwork, NetworkProblem
from orch.runner.node_api.target import Target, TargetError
from orch.spec.errors import OrchError

EXTERNAL_PORTS = (2375, 2376, 10022, 29500)
"""Docker's API without and with TLS, the port of other tools' containers, torchrun's rendezvous."""


class Result(str, Enum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one host.

    `detail` holds the measured value, or why the check was skipped; `hint` says what to do. `code` is set on
    a warning or a failure.
    """

    id: str
    result: Result
    detail: str
    hint: str | None = None
    code: str | None = None

    @property
    def failed(self) -> bool:
        return self.result is Result.FAIL


@dataclass(frozen=True)
class CheckOptions:
    """Which checks run, and the thresholds they use.

    `image`: the image for the check of GPUs in containers, used if a host has it; `pull` pulls it otherwise.
    `mesh`: try connections between hosts. `external`: try connections from this machine to `external_ports`.
    `machine_ids`: hosts must have a machine id.
    """

    cluster: bool = False
    network: str | None = None
    disk_min_gib: float = 50.0
    disk_warn_gib: float = 100.0
    clock_s: float = 5.0
    cuda: tuple[int, int] = (12, 1)
    image: str | None = None
    pull: bool = False
    mesh: bool = True
    external: bool = True
    machine_ids: bool = True
    external_ports: tuple[int, ...] = EXTERNAL_PORTS


@dataclass(frozen=True)
class ContainerProbe:
    """`nvidia-smi -L` in a container: how many GPUs it listed.

    `skip_reason` says why it was not tried, `output` what the container printed (at most 300 characters).
    """

    image: str | None = None
    gpus: int = 0
    exit_code: int = 0
    output: str = ""
    skip_reason: str | None = None


@dataclass(frozen=True)
class MeshView:
    """The connections of one host to its peers, tried in both directions.

    `peers` counts the hosts that it tried. `unreached`: peers it could not connect to, with why;
    `unreached_by`: peers that could not connect to it, with why. `lost_large_packets`: peers to which packets
    of the interface's MTU get lost, with why. `sshd_port_only`: peers without a program to listen with, where
    only sshd's port was tried. `unmeasured_mtu`: peers whose packet size was not tried. `failure`: why this
    host could not take part.
    """

    peers: int
    unreached: tuple[tuple[str, str], ...] = ()
    unreached_by: tuple[tuple[str, str], ...] = ()
    lost_large_packets: tuple[tuple[str, str], ...] = ()
    sshd_port_only: tuple[str, ...] = ()
    unmeasured_mtu: tuple[str, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class HostObservation:
    """Everything known about one host when its checks are judged.

    `error`: why the host could not be connected to. `unverified_key`: the fingerprint of a host key that
    nothing vouches for. `open_ports` is None when they were not tried; `skip_reason` says why.
    `same_machine_id`: other hosts with its machine id. `host_count`: hosts that answer, this one included.
    `rdma_common`: the number of active RDMA ports that most hosts have.
    """

    name: str
    facts: HostFacts | None = None
    error: OrchError | None = None
    connected_s: float | None = None
    unverified_key: str | None = None
    container: ContainerProbe | None = None
    open_ports: tuple[int, ...] | None = None
    skip_reason: str = ""
    same_machine_id: tuple[str, ...] = ()
    host_count: int = 1
    network: ClusterNetwork | None = None
    problems: tuple[NetworkProblem, ...] = field(default=())
    mesh: MeshView | None = None
    rdma_common: int = 0


@dataclass(frozen=True)
class HostReport:
    """One host and its checks; `facts` is None for a host that cannot be reached."""

    target: Target | TargetError
    facts: HostFacts | None
    checks: tuple[CheckResult, ...]

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def failed(self) -> bool:
        return any(check.failed for check in self.checks)

    def check(self, check_id: str) -> CheckResult:
        return next(check for check in self.checks if check.id == check_id)


@dataclass(frozen=True)
class Outcome:
    """The result of one check's function; `hint` and `code`, where set, replace the check's own."""

    result: Result
    detail: str
    hint: str | None = None
    code: str | None = None


Judge = Callable[[HostFacts, HostObservation, CheckOptions], Outcome]


def passed(detail: str) -> Outcome:
    return Outcome(Result.PASS, detail)


def warned(detail: str, hint: str | None = None) -> Outcome:
    return Outcome(Result.WARN, detail, hint)


def failed(detail: str, hint: str | None = None) -> Outcome:
    return Outcome(Result.FAIL, detail, hint)


def skipped(reason: str) -> Outcome:
    return Outcome(Result.SKIPPED, reason)


def count(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
