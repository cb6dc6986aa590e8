"""Some work on several stacks at once, each in a process of its own.

A process ends with its stack: the SDKs of clouds, imported before, are shared, and no more than a few are
there at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.spec.models import Fleet
    from orch.stacks.project.project import Project

J = TypeVar("J")
R = TypeVar("R")

MOST_AT_ONCE = 4
"""An engine and its providers take a few hundred MiB each."""

ORPHAN_S = 0.5
"""Seconds between two looks of a process whether who started it is still there."""


def at_once(count: int) -> int:
    """Return the default number of stacks that are worked on at once, out of `count`."""
    return min(count, os.cpu_count() or 1, MOST_AT_ONCE)


def can_fork() -> bool:
    """Return True if processes can be forked from one that has loaded SDKs."""
    return sys.platform == "linux"


@dataclass(frozen=True)
class Work(Generic[J, R]):
    """Work on each job. `ended`: the result of a process that ended without one, by its exit code; `told`:
    reports a result as soon as it is there; `stops`: after such a result no other job is begun."""

    do: Callable[[J], R]
    ended: Callable[[J, int | None], R]
    told: Callable[[J, R, int], None]
    stops: Callable[[R], bool] = lambda _: False


def run(
    jobs: Sequence[J], work: Work[J, R], most: int, began: Callable[[J], None] = lambda _: None
) -> list[R | None]:
    """The results of the jobs in their order, None for one that was not begun. The caller has no threads: one
    of them might hold a lock at a fork, which nobody would give back in the process that is forked.

    SIGTERM and Ctrl-C are passed on to the processes, which are waited for. A process whose parent is gone
    stops too.
    """
    context = multiprocessing.get_context("fork")
    done: dict[int, R] = {}
    running: dict[Connection, tuple[int, Any]] = {}
    waiting = list(enumerate(jobs))
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        while waiting or running:
            while waiting and len(running) < most:
                at, job = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, job, work, os.getpid()))
                process.start()
                began(job)
                theirs.close()
                running[ours] = (at, process)
            for each in wait(list(running)):
                at, process = running.pop(each)  # type: ignore[arg-type]
                try:
                    done[at] = each.recv()  # type: ignore[union-attr]
                except EOFError:
                    process.join()
                    done[at] = work.ended(jobs[at], process.exitcode)
                each.close()  # type: ignore[union-attr]
                process.join()
                work.told(jobs[at], done[at], len(done))
                if work.stops(done[at]):
                    waiting.clear()
    finally:
        for ours, (_, process) in running.items():
            ours.close()
            process.terminate()
        for _, process in running.values():
            process.join()
        signal.signal(signal.SIGTERM, before)
    return [done.get(at) for at in range(len(jobs))]


def import_before(fleets: Sequence[Fleet], project: Project) -> None:
    """Import what the processes need, once for all of them."""
    import orch.stacks.provisioning.operations
    import orch.stacks.volumes.operations  # noqa: F401
    from orch.components.registry.backends import backend
    from orch.spec.models.backends import effective

    settings = tuple(each.type for each in project.backends)
    names = {
        "ssh" if fleet.ssh_config is not None else name
        for fleet in fleets
        for name in (effective(fleet.written_backends, settings) or ("",))[:1]
    }
    for name in sorted(names - {""}):
        # One that cannot be imported is told where its fleet is planned.
        with suppress(OrchError, ImportError):
            backend(name).module("resources")


def own_project(project: Project) -> Project:
    """The project for a process of its own: the account of a rehearsal has an open database, which no two
    processes may share."""
    if not project.rehearsal:
        return project
    from dataclasses import replace

    from orch.rehearsal.project import rehearse
    from orch.stacks.project.project import project_in

    own = rehearse(project_in(project.root)).project
    return replace(
        own,
        owner=project.owner,
        forget=project.forget,
        keyless=project.keyless,
        policy_packs=project.policy_packs,
    )


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _child(answer: Connection, job: Any, work: Work[Any, Any], parent: int) -> None:
    """Do the work on one job. Ctrl-C is the parent's, who passes it on as SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()
    code = ExitCode.OK
    try:
        answer.send(work.do(job))
    except (KeyboardInterrupt, OSError):  # the parent was stopped, and waits for no answer
        code = ExitCode.INTERRUPTED
    sys.stderr.flush()
    os._exit(code)


def _stop_with(parent: int) -> None:
    """Stop this process as Ctrl-C would, once its parent is gone: nobody would learn what it does."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGTERM)
