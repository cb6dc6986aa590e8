"""Errors between a plan and the engine."""

from __future__ import annotations

from collections.abc import Mapping

from orch.components.request import CloudAnswer
from orch.spec.errors import ExitCode, OrchError


class StackError(OrchError):
    """Provisioning failed. The root of this package's errors."""

    exit_code: ExitCode = ExitCode.PROVISION


class EngineMissing(StackError):
    """This machine has no usable Pulumi engine, and none could be installed."""


class EngineFailed(StackError):
    """Resources failed. `errors`: the message of each, by its urn; `answer`: what they mean together."""

    def __init__(
        self,
        summary: str,
        *,
        errors: Mapping[str, str],
        answer: CloudAnswer | None = None,
        **details: str | None,
    ) -> None:
        super().__init__(summary, **details)
        self.errors = dict(errors)
        self.answer = answer


class NoCapacity(StackError):
    """No place has capacity for all nodes of a fleet."""


class ProjectError(StackError):
    """The project folder, its orch.yml or its `.orch` cannot be used."""

    exit_code = ExitCode.CONFIG


class Conflict(StackError):
    """Another process changes the stack, runs are on its nodes, or a newer orch wrote its state."""

    exit_code = ExitCode.CONFLICT


class OtherAccount(Conflict):
    """The credentials lead to another account than the stack's, or to one that has nothing of the stack."""


class StackLocked(Conflict):
    """Another process holds the stack's lock."""


class NoSuchFleet(StackError):
    """The named fleet is not up in this project."""

    exit_code = ExitCode.CONFIG


class Interrupted(StackError):
    """The user stopped the command; the engine ended in order and recorded what exists."""

    exit_code = ExitCode.INTERRUPTED


class EngineGone(StackError):
    """The engine ended by itself in the middle of its work, as when the machine has no memory left."""


class NoSuchNode(StackError):
    """The fleet does not have the named node."""

    exit_code = ExitCode.USAGE
