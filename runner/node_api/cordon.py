"""Cordoned nodes take no new jobs. The mark is a file on the node, so that all clients see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from orch.runner.errors import RunnerError
from orch.runner.node_api.commands import NODE_HOME, Command, argv, as_root
from orch.runner.node_api.connector import Connector, NodeResult, fan_out
from orch.runner.processes import here
from orch.spec.state import NodeState

T = TypeVar("T")

MARK = f"{NODE_HOME}/cordon"

CLOUD = "its cloud"
"""Who cordons a node that reads a notice of its cloud."""


@dataclass(frozen=True)
class Cordon:
    """Who cordoned a node, since when, and why."""

    by: str
    since: str
    reason: str

    @classmethod
    def parse(cls, text: str) -> Cordon:
        by, since, reason = (*text.split("|", 2), "", "", "")[:3]
        return cls(by, since, reason)

    @property
    def line(self) -> str:
        """The text of the mark on the node."""
        words = (self.by.replace("|", "/"), self.since, " ".join(self.reason.split()))
        return "|".join(words)

    @property
    def of_cloud(self) -> bool:
        """Whether it is the node's own, for what its cloud announced."""
        return self.by == CLOUD

    def __str__(self) -> str:
        who = f"by {self.by or '?'} since {self.since or '?'}"
        return f"{self.reason}, {who}" if self.reason else who


def mark(
    nodes: Sequence[NodeState], connector: Connector, reason: str, *, deadline_s: float
) -> tuple[NodeResult[Cordon], ...]:
    """Cordon `nodes`: they refuse new jobs, running jobs continue. An earlier mark is replaced."""
    cordon = Cordon(here(), _now(), reason)
    script = f"mkdir -p {NODE_HOME} && chmod 700 {NODE_HOME} && {_written(cordon)}"
    return _change(nodes, connector, Command(as_root(script), "cordon the node"), cordon, deadline_s)


def mark_for(
    nodes: Sequence[NodeState], connector: Connector, reason: str, change: str, *, deadline_s: float
) -> tuple[NodeResult[Cordon], ...]:
    """Cordon `nodes` for a change, where nobody has; the mark that stands on each then.

    `change` is in the mark's reason, by which `unmark_of` and a later call know it; its words may differ.
    """
    cordon = Cordon(here(), _now(), f"{reason} ({change})")
    script = f"""\
mkdir -p {NODE_HOME} && chmod 700 {NODE_HOME} || exit 1
if [ -s {MARK} ] && ! {_has(change)}; then sed -n 1p {MARK}; exit 0; fi
{_written(cordon)} && sed -n 1p {MARK}"""
    command = Command(as_root(script), "cordon the node")

    def change_one(node: NodeState) -> Cordon:
        return Cordon.parse(_run(node, connector, command, deadline_s).strip())

    return fan_out(nodes, change_one)


def unmark_of(
    nodes: Sequence[NodeState], connector: Connector, change: str, *, deadline_s: float
) -> tuple[NodeResult[Cordon | None], ...]:
    """Uncordon `nodes` that a change cordoned; the mark of somebody else that stays on each, if any.

    `change`: words of the mark's reason, in parentheses there.
    """
    script = f"""\
[ -s {MARK} ] || exit 0
if {_has(change)}; then rm -f {MARK}; else sed -n 1p {MARK}; fi"""
    command = Command(as_root(script), "let the node take jobs")

    def change_one(node: NodeState) -> Cordon | None:
        text = _run(node, connector, command, deadline_s).strip()
        return Cordon.parse(text) if text else None

    return fan_out(nodes, change_one)


def unmark(
    nodes: Sequence[NodeState], connector: Connector, *, deadline_s: float
) -> tuple[NodeResult[None], ...]:
    """Uncordon `nodes`: they take jobs again. Does nothing on nodes that are not cordoned."""
    return _change(
        nodes, connector, Command(as_root(f"rm -f {MARK}"), "let the node take jobs"), None, deadline_s
    )


def _change(
    nodes: Sequence[NodeState], connector: Connector, command: Command, value: T, deadline_s: float
) -> tuple[NodeResult[T], ...]:
    def change(node: NodeState) -> T:
        _run(node, connector, command, deadline_s)
        return value

    return fan_out(nodes, change)


def _run(node: NodeState, connector: Connector, command: Command, deadline_s: float) -> str:
    result = connector.run(node, command, deadline_s=deadline_s)
    if not result.ok:
        raise RunnerError(
            f"the cordon of node {node.name} could not be changed",
            where=node.name,
            detail=result.stderr.strip() or result.ending,
        )
    return result.stdout


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _written(cordon: Cordon) -> str:
    """Shell text that puts a mark into place: a job that starts meanwhile sees the whole of it or none."""
    write = argv("printf", "%s\\n", cordon.line)
    return f"{write} > {MARK}.$$ && mv {MARK}.$$ {MARK}"


def _has(change: str) -> str:
    """Shell text that tells whether the mark is that of a change."""
    words = argv("grep", "-qF", "--", f"({change})")
    return f"{words} {MARK}"
