"""What keeps a host out of its fleet, by what was found of it; the errors of a fleet without any. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from orch.components.request import KeyProblem, NewHostKey, NodeProblem, NodeWarning
from orch.runner.errors import HostKeyUnaccepted
from orch.runner.hosts.checks.types import HostReport, Result
from orch.runner.node_api.target import TargetError
from orch.runner.ssh.public_keys import ACCEPT
from orch.spec.errors import ExitCode, OrchError
from orch.spec.findings import PlanError
from orch.spec.suggest import counted

if TYPE_CHECKING:
    from orch.spec.loader.load import Document


class Unfit(PlanError):
    """None of a fleet's hosts can be taken."""

    exit_code = ExitCode.HOSTS

    def placed(self, document: Document) -> OrchError:
        """Itself: the hosts are amiss, not the file."""
        return self


class KeysUnaccepted(Unfit):
    """None of a fleet's hosts can be taken, of some for nobody has accepted a host key yet (`problems`)."""

    def __init__(self, fleet: str, problems: Sequence[NodeProblem]) -> None:
        self.problems = tuple(problems)
        self.keys = new_keys_of(problems)
        waiting = [problem.node for problem in problems if isinstance(problem, KeyProblem)]
        others = [problem.text() for problem in problems if not isinstance(problem, KeyProblem)]
        lines = [f"{key.host}: {key.key.split()[0]} {key.fingerprint}" for key in self.keys]
        super().__init__(
            "ORCH388",
            f"nobody has accepted the host keys that {counted(len(waiting), 'host')} of {fleet} "
            f"{'waits' if len(waiting) == 1 else 'wait'} for",
            path="ssh_config.hosts",
            detail="\n".join([*lines, *others]),
            hint=ACCEPT,
        )


def new_keys_of(problems: Iterable[NodeProblem]) -> tuple[NewHostKey, ...]:
    """The keys that have to be accepted first, each once: a jump host has one for all behind it."""
    return tuple(dict.fromkeys(problem.new for problem in problems if isinstance(problem, KeyProblem)))


def _failed_checks(report: HostReport) -> list[NodeProblem]:
    """Failed checks of one host. One that was not reached has a single problem."""
    name = report.name
    error = report.target.error if isinstance(report.target, TargetError) else None
    if isinstance(error, HostKeyUnaccepted):
        new = NewHostKey(error.host, error.key, error.fingerprint, "scanned")
        return [
            KeyProblem(
                error.summary,
                node=name,
                new=new,
                where=name,
                detail=error.detail,
                hint=error.hint,
                code=error.code,
            )
        ]
    return [
        NodeProblem(
            f"{check.id}: {check.detail}",
            node=name,
            where=name,
            hint=check.hint or None,
            code=check.code,
        )
        for check in report.checks
        if check.result == "fail"
    ]


def judge_host(report: HostReport, preflight: str) -> tuple[list[NodeProblem], list[NodeWarning]]:
    """What keeps the host out, and what is told of it. Without `strict`, only silence keeps a host out."""
    problems = _failed_checks(report)
    warnings = [
        NodeWarning(report.name, f"{check.id}: {check.detail}")
        for check in report.checks
        if check.result is Result.WARN
    ]
    if report.facts is None or preflight == "strict":
        return problems, warnings
    if preflight == "warn":
        return [], warnings + [NodeWarning(report.name, each.summary) for each in problems]
    return [], []
