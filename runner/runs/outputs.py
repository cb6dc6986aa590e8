"""`outputs` of a task: brought to this machine when the job ends, before its container is removed.

Each step may be repeated: what is unpacked waits in a folder of its own and is moved when it is whole, and a
mark in the run's folder says that it was. A rank whose outputs could not be brought keeps its container, and
the next pass tries again.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.events import Notice
from orch.runner.launch.run_plan import OutputPlan, RunPlan
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.private import private_folder, write_private
from orch.runner.runs.context import RunContext
from orch.runner.upload.archive import Unpacking, place
from orch.runner.upload.selection import bytes_text

TELL_EVERY_S = 10.0


def collect_outputs(context: RunContext, plan: RunPlan, rank: int, *, tell: bool = True) -> None:
    """Bring the outputs of one rank that has ended.

    A path that the job did not make is told, and is no error. Raises RunnerError when the node does not
    answer, or when this machine cannot keep what comes.
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
            raise RunnerError(
                f"{output.path} of rank {rank} could not be kept on this machine",
                where=error.filename or str(context.folder.outputs),
                detail=error.strerror or str(error),
                hint="make room, then `orch ps` collects it: its container stays until then",
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        if tell:
            context.processor.handle(text)


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
    if received.left_out:
        text += f"; {received.left_out} links that lead out of it are left out"
    return Notice(text, "warning" if received.left_out else "note")


def output_target(folder: RunFolder, plan: RunPlan, rank: int, output: OutputPlan) -> Path:
    """Where an output of a rank goes: as `to` says, else below the run's folder by its path in the job."""
    if output.to is None:
        return folder.outputs / str(rank) / output.path.lstrip("/")
    to = Path(output.to).resolve()  # it may be a link to where there is room
    return to / str(rank) if len(plan.ranks) > 1 else to
