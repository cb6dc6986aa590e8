"""What a check comes to, what is wanted of hosts, and what was observed of one: the values checks work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from orch.runner.hosts.host_facts import HostFacts
from orch.runner.hosts.network import ClusterNetwork, NetworkProblem
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
    """One check of one host. `detail` holds the measured value, or why it was skipped; `hint` what to do.

    `code` is set where there is something to tell: on a warning or a failure.
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
class Wanted:
    """What is asked of the hosts.

    `image`: what to try GPUs in containers with, if a host has it; `pull`: else it is pulled. `mesh` and
    `external` say whether connections between hosts, and from here to them, are tried. `machine_ids`: whether
    hosts must have one.
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
class ContainerTry:
    """`nvidia-smi -L` in a container: how many GPUs it listed, or why it could not be tried (`untried`)."""

    image: str | None = None
    gpus: int = 0
    exit_code: int = 0
    said: str = ""
    untried: str | None = None


@dataclass(frozen=True)
class MeshView:
    """What one host and its peers found of each other.

    `unreached`: peers it could not connect to, with why; `unheard`: peers that could not connect to it.
    `narrow`: peers to which packets as large as the interface sends are lost. `guessed`: peers of which only
    sshd's port was tried, for lack of a program to listen with. `unmeasured`: peers whose packet size was not
    tried. `trouble`: why this host could not take part.
    """

    peers: int
    unreached: tuple[tuple[str, str], ...] = ()
    unheard: tuple[tuple[str, str], ...] = ()
    narrow: tuple[tuple[str, str], ...] = ()
    guessed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True)
class Observed:
    """Everything known about one host when its checks are judged.

    `error` is that of connecting; `trusted` the fingerprint of a host key that nothing vouched for.
    `open_ports` is None when they were not tried; `untried` says why. `twins` have the same machine id,
    `hosts` counts those that were reached, `rdma_common` is the number of active RDMA ports most have.
    """

    name: str
    facts: HostFacts | None = None
    error: OrchError | None = None
    connected_s: float | None = None
    trusted: str | None = None
    container: ContainerTry | None = None
    open_ports: tuple[int, ...] | None = None
    untried: str = ""
    twins: tuple[str, ...] = ()
    hosts: int = 1
    network: ClusterNetwork | None = None
    problems: tuple[NetworkProblem, ...] = field(default=())
    mesh: MeshView | None = None
    rdma_common: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one check's function says; `hint` and `code` in place of the check's own ones."""

    result: Result
    detail: str
    hint: str | None = None
    code: str | None = None


Judge = Callable[[HostFacts, Observed, Wanted], Outcome]


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
