"""Errors of maintenance."""

from __future__ import annotations

from orch.spec.errors import ExitCode
from orch.stacks.errors import StackError


class MaintenanceError(StackError):
    """A step on a node failed. The root of this package's errors."""

    exit_code = ExitCode.HOSTS
    detail_is_ours = True


class NothingToDo(MaintenanceError):
    """Error: all named nodes are left alone."""


class NotDrained(MaintenanceError):
    """Runs are on the node still."""

    exit_code = ExitCode.CONFLICT


class NodesFailed(MaintenanceError):
    """Nodes failed, and are cordoned."""


class CannotReplace(MaintenanceError):
    """The node cannot be made anew."""

    exit_code = ExitCode.USAGE


class NotHelped(MaintenanceError):
    """Error: the requested action does not help the node, and another call would not either."""
