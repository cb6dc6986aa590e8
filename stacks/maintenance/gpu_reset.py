"""Resets the GPUs of nodes: evidence first, then what the faults ask for, then a reset without jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orch.runner.errors import CommandTimeout, HostUnreachable, RunnerError
from orch.runner.health.gpus import (
    GpuLook,
    Triage,
    evidence_command,
    keep_evidence,
    look_command,
    read_look,
    read_reset,
    reset_command,
    triage,
)
from orch.spec.errors import OrchError
from orch.spec.state import NodeState
from orch.spec.suggest import counted
from orch.stacks.maintenance.context import Failures, Maintenance
from orch.stacks.maintenance.drain import NOT_IN_ORDER, put_mark
from orch.stacks.maintenance.errors import MaintenanceError, NotHelped

EVIDENCE, TRIAGE, RESET, VERIFY = "evidence", "triage", "reset", "verify"

ANSWER_S = 15.0


def evidence(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Collect what tells of faults, before anything is done to the nodes."""

    def do(node: NodeState) -> str:
        try:
            return _collect(at, node)
        except (HostUnreachable, CommandTimeout) as error:
            if at.plan.verb == "reset-gpu":
                raise
            return f"none: {error.summary}"

    at.on_each(names, EVIDENCE, do, failures)


def _collect(at: Maintenance, node: NodeState) -> str:
    result = at.connector.run(node, evidence_command(), deadline_s=ANSWER_S)
    if not result.ok:
        raise RunnerError(
            f"no evidence could be collected on node {node.name}",
            detail=result.stderr.strip() or result.ending,
        )
    folder = folder_of(at.project.dot, at.journal.change.id) / node.name
    kept = keep_evidence(result.stdout, folder)
    return f"{counted(len(kept), 'file')} in {folder.relative_to(at.project.root)}"


def folder_of(dot: Path, change: int) -> Path:
    """Return the folder with the evidence of a change, which has a folder for each node."""
    return dot / "evidence" / str(change)


def judge(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Go on with nodes that a reset may help; the others fail, with what helps."""
    at.on_each(names, TRIAGE, lambda node: _judge(at, node), failures)


def _judge(at: Maintenance, node: NodeState) -> str:
    look, found = _triage(at, node)
    if found.action == "reset":
        which = f"GPU {','.join(found.indices)}" if found.indices else "all GPUs"
        board = ", which NVSwitches join" if look.fabric else ""
        return f"reset of {which}{board}: {found.why}"
    if found.action == "none":
        raise NotHelped(
            f"no reset helps node {node.name}: its faults are those of applications",
            detail=found.why,
            hint="look at the job that had the GPU; the node stays as it is",
            code="ORCH407",
        )
    put_mark(at, node, f"{NOT_IN_ORDER}: {found.why}: {found.action} it")
    raise NotHelped(
        f"a reset does not help node {node.name}, which is cordoned",
        detail=found.why,
        hint=f"`orch node {found.action} {node.name}`",
        code="ORCH407",
    )


def _triage(at: Maintenance, node: NodeState) -> tuple[GpuLook, Triage]:
    look = _look(at, node)
    if not look.present:
        raise NotHelped(
            f"node {node.name} has no NVIDIA GPUs that can be reset",
            detail="there is no nvidia-smi",
            hint=f"`orch node reboot {node.name}`",
            code="ORCH407",
        )
    return look, triage(look)


def _look(at: Maintenance, node: NodeState) -> GpuLook:
    result = at.connector.run(node, look_command(), deadline_s=ANSWER_S)
    if not result.ok:
        raise RunnerError(
            f"the GPUs of node {node.name} cannot be looked at",
            detail=result.stderr.strip() or result.ending,
        )
    return read_look(result.stdout)


def reset(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Reset the GPUs of drained nodes, and look whether all of them are there without errors."""
    at.on_each(names, RESET, lambda node: _reset(at, node), failures)
    at.on_each(names, VERIFY, lambda node: _verify(at, node), failures)


def _reset(at: Maintenance, node: NodeState) -> str:
    look, found = _triage(at, node)
    command = reset_command(at.mark, found.indices, fabric=look.fabric)
    try:
        return read_reset(at.connector.run(node, command, deadline_s=ANSWER_S))
    except OrchError as error:
        raise _not_reset(node, error.summary, error.detail) from error


def _verify(at: Maintenance, node: NodeState) -> str:
    look = _look(at, node)
    wanted = node.gpus.count
    if look.trouble or len(look.gpus) < wanted:
        told = look.trouble or f"{len(look.gpus)} of {wanted} are there"
        raise _not_reset(node, f"the GPUs of node {node.name} are not in order", told)
    faulty = [f"GPU {gpu.index} has {gpu.ecc}" for gpu in look.gpus if gpu.ecc]
    if faulty:
        raise _not_reset(
            node, f"GPUs of node {node.name} have uncorrected ECC errors again", ", ".join(faulty)
        )
    return f"{counted(len(look.gpus), 'GPU')}, no uncorrected ECC error"


def _not_reset(node: NodeState, summary: str, detail: str | None) -> MaintenanceError:
    return MaintenanceError(
        summary,
        detail=detail,
        hint=f"`orch node reboot {node.name}`, or `orch node replace {node.name}` where that does not help",
        code="ORCH408",
    )
