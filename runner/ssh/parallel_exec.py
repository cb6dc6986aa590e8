"""One command on many nodes, and what they answer, equal answers folded into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orch.runner.launch.environment import fold
from orch.runner.ssh.commands import Command, as_root
from orch.runner.ssh.pool import SshTransport
from orch.runner.ssh.transport import Completed, fan_out
from orch.spec.errors import ExitCode, OrchError
from orch.spec.state import NodeState


@dataclass(frozen=True)
class ExecResult:
    """What a command came to on one node: its end, or the error that took its place."""

    node: NodeState
    done: Completed | None
    error: OrchError | None


@dataclass(frozen=True)
class FoldedResult:
    """Nodes that answered the same, under their folded names."""

    nodes: str
    count: int
    exit_code: int
    stdout: str
    stderr: str


def ask(
    nodes: Sequence[NodeState], transport: SshTransport, text: str, *, root: bool, timeout_s: float | None
) -> tuple[ExecResult, ...]:
    """Run shell text on each node, with one attempt to connect; answers in the order of `nodes`."""
    command = Command(as_root(text) if root else text, "the command", timeout_s=timeout_s)

    def work(node: NodeState) -> Completed:
        try:
            return transport.run(node, command, deadline_s=0)
        finally:
            transport.drop(node)

    return tuple(ExecResult(result.node, result.value, result.error) for result in fan_out(nodes, work))


def folded(answers: Iterable[ExecResult]) -> tuple[FoldedResult, ...]:
    """The answers of nodes that gave one, each once, in the order of their first nodes."""
    groups: dict[tuple[int, str, str], list[str]] = {}
    for answer in answers:
        if answer.done is not None:
            key = (answer.done.exit_code, answer.done.stdout, answer.done.stderr)
            groups.setdefault(key, []).append(answer.node.name)
    return tuple(
        FoldedResult(fold(names), len(names), code, stdout, stderr)
        for (code, stdout, stderr), names in groups.items()
    )


def folded_errors(answers: Iterable[ExecResult]) -> tuple[tuple[str, str], ...]:
    """Folded names of nodes and what kept them from answering, equal texts once."""
    groups: dict[str, list[str]] = {}
    for answer in answers:
        if answer.error is not None:
            groups.setdefault(answer.error.text(), []).append(answer.node.name)
    return tuple((fold(names), text) for text, names in groups.items())


def exit_code(answers: Iterable[ExecResult]) -> int:
    """The largest exit code of the commands; a node that gave none counts as 7."""
    return max((int(ExitCode.HOSTS) if a.done is None else a.done.exit_code for a in answers), default=0)
