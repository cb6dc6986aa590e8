"""What can go wrong between a plan and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from orch.components.request import CloudAnswer
from orch.spec.errors import ExitCode, OrchError


class StackError(OrchError):
    """Provisioning failed. The root of this package's errors."""

    exit_code: ClassVar[ExitCode] = ExitCode.PROVISION


class EngineMissing(StackError):
    """No usable Pulumi engine is on this machine and none could be installed."""


class EngineFailed(StackError):
    """Resources failed. `errors` holds what was said of each, by its urn; `answer` what it comes to."""

    def __init__(
        self,
        summary: str,
        *,
        errors: Mapping[str, str],
        answer: CloudAnswer | None = None,
        **told: str | None,
    ) -> None:
        super().__init__(summary, **told)
        self.errors = dict(errors)
        self.answer = answer


class NoCapacity(StackError):
    """No place has room for all nodes of a fleet."""


class ProjectError(StackError):
    """The project folder, its orch.yml or its `.orch` cannot be used."""

    exit_code = ExitCode.CONFIG


class Conflict(StackError):
    """Somebody else holds the stack, or its state is of a newer orch."""

    exit_code = ExitCode.CONFLICT


class StackLocked(Conflict):
    """Somebody else is changing the stack."""


class NoSuchFleet(StackError):
    """A fleet was named that this project has not brought up."""

    exit_code = ExitCode.CONFIG


class Interrupted(StackError):
    """The user stopped it; the engine ended in order and the state says what is there."""

    exit_code = ExitCode.INTERRUPTED


class NoSuchNode(StackError):
    """A node was named that the fleet does not have."""

    exit_code = ExitCode.USAGE
