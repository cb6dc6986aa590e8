"""`outputs` of a task: brought to this machine when the job ends, before its container is removed.

Each step may be repeated: what is unpacked waits in a folder of its own and is moved when it is whole, and a
mark in the run's folder says that it was. A rank whose outputs could not be brought keeps its container, and
the next pass tries again. What could not be kept, and what was left out, is told in the ledger too, for who
asks for the run later.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from orch.runner.errors import OutputsNotKept, PodGone
from orch.runner.events import Notice
from orch.runner.ledger.ledger import Ledger
from orch.runner.ledger.records import RunRow
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.plan.run_plan import OutputPlan, RunPlan
from orch.runner.private import private_folder, write_private
from orch.runner.processes import here
from orch.runner.runs.context import RunContext
from orch.runner.upload.archive import Unpacking, place
from orch.runner.upload.selection import bytes_text
from orch.spec.suggest import counted

TELL_EVERY_S = 10.0
_NOT_KEPT = "not_kept"
_LEFT_OUT = "left_out"
_KEPT = "kept"


def collect_outputs(context: RunContext, plan: RunPlan, rank: int, *, tell: bool = True) -> None:
    """Bring the outputs of one rank that has ended.

    A path that the job did not make, or that went with its pod, is told, and is no error. Raises RunnerError
    when the node does not answer, OutputsNotKept when this machine cannot keep what comes.
    """
    for index, output in enumerate(plan.outputs):
        mark = context.folder.outputs / f".{rank}.{index}.collected"
        if mark.exists():
            continue
        staged = context.folder.outputs / f".{rank}.{index}.partial"
        private_folder(context.folder.outputs)
        try:
            text = _collect(context, plan, rank, output, staged)
            write_private(mark, "")
        except OSError as error:
            where = error.filename or str(context.folder.outputs)
            not_kept = OutputsNotKept(
                f"{output.path} of rank {rank} could not be kept on this machine",
                where=where,
                detail=f"{where}: {error.strerror or error}",
                hint="make room there, then `orch ps` collects it: its container stays until then",
            )
            _tell(context, _NOT_KEPT, rank, f"{not_kept.detail}; {not_kept.hint}")
            raise not_kept from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        if text.level != "note":
            _tell(context, _LEFT_OUT, rank, text.text)
        if tell:
            context.processor.handle(text)


def _tell(context: RunContext, kind: str, rank: int, text: str) -> None:
    folder = context.folder
    context.ledger.tell(folder.number, f"{kind} {folder.attempt}.{rank}", text)


@dataclass(frozen=True)
class OutputsLeft:
    """What of a run that has ended is not here: ranks whose outputs are still on their nodes, each with its
    node and why, and a line for each output that did not come whole, or not at all."""

    on_nodes: tuple[tuple[int, str, str], ...] = ()
    left_out: tuple[str, ...] = ()


def outputs_left(ledger: Ledger, row: RunRow) -> OutputsLeft:
    """What of the latest attempt's outputs is not here, as far as is known in the ledger."""
    events = ledger.events(row.id)
    why = {kind: text for _, kind, text in events if kind.startswith(_NOT_KEPT)}
    on_nodes = tuple(
        (rank.rank, rank.node, why[key])
        for rank in row.ranks
        if not rank.collected and (key := f"{_NOT_KEPT} {row.attempt}.{rank.rank}") in why
    )
    of_attempt = f"{_LEFT_OUT} {row.attempt}."
    return OutputsLeft(on_nodes, tuple(text for _, kind, text in events if kind.startswith(of_attempt)))


def tell_keeper(context: RunContext) -> None:
    """Write down that logs and outputs of an attempt are kept on this machine."""
    context.ledger.tell(context.folder.number, f"{_KEPT} {context.folder.attempt}", here())


def keeper(ledger: Ledger, number: int, attempt: int) -> str | None:
    """Who keeps logs and outputs of an attempt that has ended (user@host), where that is somebody else."""
    kept = [text for _, kind, text in ledger.events(number) if kind == f"{_KEPT} {attempt}"]
    return kept[-1] if kept and here() not in kept else None


def _collect(context: RunContext, plan: RunPlan, rank: int, output: OutputPlan, staged: Path) -> Notice:
    node = plan.ranks[rank].node
    unpacking = Unpacking(staged)
    told = time.monotonic()

    def take(data: bytes) -> None:
        nonlocal told
        unpacking.write(data)
        if time.monotonic() - told > TELL_EVERY_S:
            told = time.monotonic()
            text = f"rank {rank}: collecting {output.path}, {bytes_text(unpacking.received.size)} so far"
            context.processor.handle(Notice(text))

    try:
        found = context.runtime(node).read_path(context.connector, plan, rank, output.path, take)
        entry = unpacking.finish() if found else None
    except PodGone as gone:
        return Notice(f"rank {rank}: {gone.summary}; {output.path} went with it, uncollected", "warning")
    finally:
        unpacking.close()
    if entry is None:
        return Notice(f"rank {rank}: there is no {output.path}, nothing is collected of it", "warning")
    target = output_target(context.folder, plan, rank, output)
    if output.to is not None and not entry.is_dir():
        target /= entry.name
    place(entry, target)
    received = unpacking.received
    files = f"{received.files} file{'' if received.files == 1 else 's'}"
    text = f"rank {rank}: collected {output.path}, {files}, {bytes_text(received.size)}: {target}"
    left_out: list[str] = []
    if received.left_out:
        left_out.append(f"{counted(received.left_out, 'link')} to somewhere out of it")
    if received.special:
        left_out.append(f"{counted(received.special, 'special file')} (pipes, devices)")
    if left_out:
        return Notice(f"{text}; left out: {', '.join(left_out)}", "warning")
    return Notice(text)


def output_target(folder: RunFolder, plan: RunPlan, rank: int, output: OutputPlan) -> Path:
    """Where an output of a rank goes: as `to` says, else below the run's folder by its path in the job."""
    if output.to is None:
        return folder.outputs / str(rank) / output.path.lstrip("/")
    to = Path(output.to).resolve()  # it may be a link to where there is room
    return to / str(rank) if len(plan.ranks) > 1 else to
