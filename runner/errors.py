"""Errors of runs, hosts and the ledger, one class per cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orch.spec.confidential import hidden
from orch.spec.errors import ExitCode, OrchError


class RunnerError(OrchError):
    """The root of the runner's errors."""

    exit_code = ExitCode.RUN_FAILED


class HostUnreachable(RunnerError):
    """A host did not answer over SSH within its deadline, or refused the login."""

    exit_code = ExitCode.HOSTS


class PodGone(HostUnreachable):
    """The pod that is the node has ended, was deleted or evicted, or another has its name: waiting does not
    help.

    `reason`: the cluster's word for why (Evicted, OOMKilled), empty where it has none. `container_code`: the
    container's exit code, where that ended by itself. `taken`: the cluster took it away, whatever ran there.
    """

    def __init__(
        self,
        summary: str,
        *,
        reason: str = "",
        container_code: int | None = None,
        taken: bool = False,
        **fields: str | None,
    ) -> None:
        super().__init__(summary, **fields)
        self.reason = reason
        self.container_code = container_code
        self.taken = taken


class LoginRefused(HostUnreachable):
    """The host answers, but accepts none of our keys: waiting does not help."""


class HostKeyRefused(HostUnreachable):
    """The host's key differs from the pinned one, or none is pinned."""


class HostKeyUnaccepted(HostKeyRefused):
    """Nobody has accepted the host's key, and no file vouches for it: orch does not log in.

    `host` names the pin of its key (a node's name, `jump ADDRESS`), `key` is the public key it offers.
    """

    def __init__(self, summary: str, *, host: str, key: str, fingerprint: str, **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.host = host
        self.key = key
        self.fingerprint = fingerprint


class JumpUnreachable(HostUnreachable):
    """A jump host cannot be reached; the state of the hosts behind it is unknown."""


class ForwardingRefused(HostUnreachable):
    """The jump host takes our login but forwards no connections: waiting does not help."""


class PortRefused(HostUnreachable):
    """A port of a node takes no connection; the node itself is reached, and waiting is left to who asked."""


class UnsafeName(HostUnreachable):
    """A host, user or path contains characters that a shell or `ssh` would interpret; it is not used."""


class BadSshConfig(RunnerError):
    """The user's own SSH configuration cannot be read."""

    exit_code = ExitCode.CONFIG


class CommandTimeout(RunnerError):
    """A command on a host outlived its deadline."""

    exit_code = ExitCode.HOSTS


class RunConflict(RunnerError):
    """Somebody else holds the requested nodes, name or run."""

    exit_code = ExitCode.CONFLICT


class NameTaken(RunConflict):
    """A run of this name is active, or being submitted (ORCH422)."""

    def __init__(self, summary: str, *, name: str, **fields: str | None) -> None:
        super().__init__(summary, code="ORCH422", **fields)
        self.name = name


class PortTaken(RunConflict):
    """A port of this machine that a run shall be reached at is another program's, or not ours to take."""


class NodesBusy(RunConflict):
    """The blocks a run needs are claimed by another run."""


class SeatsTaken(NodesBusy):
    """Another run was submitted to these nodes after they were chosen."""


class ArrayFull(RunConflict):
    """As many members of an array have nodes as may have at once."""


class NotAdmitted(NodesBusy):
    """A cluster's own scheduler has not given the run its nodes yet. `delay_s`: how long to wait before it is
    asked again, None for as usual."""

    def __init__(self, summary: str, *, delay_s: float | None = None, **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.delay_s = delay_s


class InLine(NodesBusy):
    """Another run is before this one in the line for the nodes; whether they are free was not looked at."""


class NodeCordoned(RunConflict):
    """Nodes that the run needs are cordoned: they take no new jobs."""


class NodePreparing(RunnerError):
    """A node's first boot has not finished yet."""

    exit_code = ExitCode.HOSTS


class VolumeDetaching(NodePreparing):
    """The disk of a volume is being detached from the node after another job: a start has to wait."""


class DetachPending(RunnerError):
    """A cloud was asked to detach a disk, and may still do it: it has neither done nor refused it in time, or
    its answer was lost."""

    exit_code = ExitCode.PROVISION


class NodeUnfit(RunnerError):
    """A node's preparation failed: it gets no jobs (ORCH391)."""

    exit_code = ExitCode.HOSTS


class NoFit(RunnerError):
    """No fleet, or no node of it, fits the task.

    `path` is the property of the task that does not fit, `fleets` are the names of the fleets.
    """

    exit_code = ExitCode.CONFIG

    def __init__(
        self, summary: str, *, path: str = "resources", fleets: tuple[str, ...] = (), **fields: str | None
    ) -> None:
        super().__init__(summary, **fields)
        self.path = path
        self.fleets = fleets


class BadTask(RunnerError):
    """The task cannot be run as written. Raised before anything is started.

    `path` is the property of the task that is wrong (`files.0`), empty where no single one is.
    """

    exit_code = ExitCode.CONFIG

    def __init__(self, summary: str, *, path: str = "", **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.path = path


@contextmanager
def about_property(path: str) -> Iterator[None]:
    """A BadTask of the block that names no property is about this one."""
    try:
        yield
    except BadTask as error:
        error.path = error.path or path
        raise


class HostfileIncomplete(RunnerError):
    """A node of a distributed run has no internal address (ORCH420)."""


class RunFailed(RunnerError):
    """A run could not start, or ended badly. `reason` is a termination reason of configuration 8."""

    def __init__(self, summary: str, *, reason: str = "executor_error", **fields: str | None) -> None:
        super().__init__(summary, **fields)
        self.reason = reason


class PodsRefused(RunFailed):
    """A cluster will never start the pods of a run as they are asked for."""


class NodeDiskFull(RunFailed):
    """A node has no space left for the image, the files or the container."""


class OutputsNotKept(RunnerError):
    """This machine cannot keep the outputs of a rank: its container and its claim stay on the node."""


class ImageUnavailable(RunFailed):
    """A node cannot get the job's image."""


class BadRunName(RunnerError):
    """An invalid name of a run (ORCH115)."""

    exit_code = ExitCode.USAGE


class UnknownRun(RunnerError):
    """No run of that name in this project's ledger."""

    exit_code = ExitCode.CONFIG


class UnknownRank(RunnerError):
    """A rank or an attempt that a run does not have."""

    exit_code = ExitCode.USAGE


class LedgerUnusable(RunnerError):
    """The ledger cannot be opened or written."""

    exit_code = ExitCode.CONFIG


class LedgerReadOnly(LedgerUnusable):
    """The ledger's database lets this login only read."""


class NewerLedger(RunConflict):
    """The ledger was written by a newer orch."""


def nodes_in_use(error: OrchError) -> bool | None:
    """What a run that was given no nodes by an error knows of them: whether other runs have them."""
    return None if isinstance(error, InLine) else isinstance(error, NodesBusy)


def start_reason(error: OrchError) -> str:
    """The termination reason of a rank that could not be started."""
    if isinstance(error, (NodesBusy, NodeCordoned)):
        return "failed_to_start_due_to_no_capacity"
    if isinstance(error, NodeUnfit):
        return "health_failure"
    if isinstance(error, VolumeDetaching):
        return "volume_error"
    if isinstance(error, (HostUnreachable, CommandTimeout, NodePreparing)):
        return "instance_unreachable"
    if isinstance(error, HostfileIncomplete):
        return "hostfile_incomplete"
    if isinstance(error, RunFailed):
        return error.reason
    # What is written is wrong, such as the name of a secret: no other attempt changes that.
    lasts = error.exit_code == ExitCode.CONFIG and not isinstance(error, LedgerUnusable)
    return "executor_error" if lasts else "creating_container_error"


def error_text(error: OrchError) -> str:
    """An error in one line: summary and detail, for the ledger too."""
    return hidden(f"{error.summary}: {error.detail}" if error.detail else error.summary)
