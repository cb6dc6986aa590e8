"""An array on nodes that are folders, from a process that a test can kill.

`submit DOT LEDGER BOXES STATEMENTS`: submits one, and kills itself before that many statements to the ledger.
`drive DOT LEDGER ARRAY`: drives one.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kit.nodes.foldernodes import FolderConnector, FolderLab, FolderRuntime
from sqlalchemy import event

from orch.runner.connect import ConnectorByKind
from orch.runner.events import Silent
from orch.runner.launch.submission import Submission
from orch.runner.ledger.ledger import open_ledger
from orch.runner.node.runtimes import RUNTIMES
from orch.runner.runs.arrays.drive import ArrayDriver
from orch.runner.runs.arrays.submit import submit_array
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task


def context(dot: str, url: str) -> RunnerContext:
    connector = ConnectorByKind({"folder": FolderConnector})
    return RunnerContext(
        Path(dot), open_ledger(url), connector, Silent(), {**RUNTIMES, "folder": FolderRuntime()}
    )


def submit_and_die(dot: str, url: str, boxes: str, statements: str) -> None:
    place, left = context(dot, url), int(statements)

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(place.ledger._engine, "before_cursor_execute", count)
    task = Task.model_validate({"name": "sweep", "array": "1-5%2", "shell": "sh", "commands": ["true"]})
    submit_array(place, Submission(task, FolderLab(Path(boxes)).fleet(), image="none", base=Path(dot).parent))


def drive(dot: str, url: str, name: str) -> None:
    place = context(dot, url)
    array = place.ledger.arrays.find(name)
    assert array is not None
    ArrayDriver(place, array).run()


if __name__ == "__main__":
    {"submit": submit_and_die, "drive": drive}[sys.argv[1]](*sys.argv[2:])
