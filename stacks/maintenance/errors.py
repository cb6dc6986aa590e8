"""Errors of maintenance."""

from __future__ import annotations

from orch.spec.errors import ExitCode
from orch.stacks.errors import StackError


class MaintenanceError(StackError):
    """A step on a node failed. The root of this package's errors."""

    exit_code = ExitCode.HOSTS
    detail_is_ours = True


class NothingToDo(MaintenanceError):
    """All nodes that were named are left alone."""


class NotDrained(MaintenanceError):
    """Runs are on the node still."""

    exit_code = ExitCode.CONFLICT


class NodesFailed(MaintenanceError):
    """Nodes failed, and are cordoned."""


class CannotReplace(MaintenanceError):
    """The node cannot be made anew."""

    exit_code = ExitCode.USAGE


class NotHelped(MaintenanceError):
    """What was asked for does not help the node: another call would not either."""
