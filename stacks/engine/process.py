"""One call of the Pulumi CLI: serve our program to it, read its events, end it in order.

The CLI runs in a session of its own, so that Ctrl-C reaches orch alone; orch then sends it one SIGTERM (which
the engine takes as "finish what is under way and stop") and waits for its end. With the stock Automation API
a Ctrl-C kills both and leaves a lock and pending creates (measured). The language server and the event
service are the SDK's own.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orch.stacks.engine.install import Engine

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
Program = Callable[[], Any]

PRIVATE = 0o077
CALLERS = -1
"""The umask of the caller, for a state in files that several users share."""


@dataclass(frozen=True)
class HeldWork:
    """Work that runs instead of a program, while the engine holds the stack's lock.

    It registers nothing, and the call ends as a failure, so the engine changes nothing of the stack. `work`
    gets a function that tells whether the engine still waits. Once the engine no longer waits, nor does this
    process: the work goes on in a thread that ends with the process.
    """

    work: Callable[[Callable[[], bool]], None]


def no_program() -> None:
    """The program that is served to commands that run none."""


_NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
WITHOUT_PROGRAM = ("destroy", "refresh")
"""Commands that run no program, and still ask its language which packages it needs: Python's own language
host answers after a `pip list`, our server at once."""


class CallMark(Protocol):
    """The mark of a call, for others who share the state. `umask`: for the files that the engine writes."""

    @property
    def umask(self) -> int: ...

    def engine_started(self, pid: int) -> None:
        """Note the engine's process, before any event."""


@dataclass(frozen=True)
class ProcessResult:
    """Result of a call. `interrupted`: a signal to orch stopped it."""

    code: int
    stdout: str
    stderr: str
    interrupted: bool = False


def call(
    engine: Engine,
    words: list[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    program: Program | HeldWork | None = None,
    on_event: OnEvent | None = None,
    mark: CallMark | None = None,
    stdin: str | None = None,
) -> ProcessResult:
    """Run `pulumi WORDS` in `folder` to its end. Events arrive in the calling thread, in order.

    Files that it and its providers write are private to their owner, unless `mark` has another umask.
    """
    program_to_serve = no_program if program is None and words[0] in WITHOUT_PROGRAM else program
    with (
        _served(program_to_serve, on_event is not None) as (flags, events),
        _signals_forwarded() as stop,
        without_collector(),
        without_debug_log(program),
    ):
        process = subprocess.Popen(
            [str(engine.command), "--non-interactive", *words, *flags],
            cwd=folder,
            env={
                # The command line has this for itself alone: a policy pack's pydantic may have plugins.
                **{key: value for key, value in os.environ.items() if (key, value) != _NO_PLUGINS},
                **environment,
                "PULUMI_AUTOMATION_API": "true",
                "PULUMI_DEBUG_COMMANDS": "true",
            },
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            umask=PRIVATE if mark is None else mark.umask,
        )
        stop.begin(process)
        if mark is not None:
            mark.engine_started(process.pid)
        output = futures.ThreadPoolExecutor(1).submit(process.communicate, stdin)
        output.add_done_callback(lambda _: events.put(None))
        while (event := events.get()) is not None:
            if on_event:
                on_event(event)
        stdout, stderr = output.result()
    # Some come after the engine's end.
    while not events.empty() and on_event and (event := events.get_nowait()) is not None:
        on_event(event)
    if program is not None and process.returncode:
        _end_leftovers()
    return ProcessResult(process.returncode, stdout, stderr, stop.requested)


@contextmanager
def without_collector() -> Iterator[None]:
    """Turn Python's cycle collector off for a while, if it was on.

    A program keeps every object it made until its end, and the collector visits all of them again and again:
    two thirds of the time of a thousand registrations, and a larger share of more. It would have freed 13 MiB
    of them (measured). Afterwards these objects count as old: else the collector would begin with them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        gc.unfreeze()


@contextmanager
def without_debug_log(program: Program | HeldWork | None) -> Iterator[None]:
    """Turn off the SDK's debug log, which only `--debug` shows and orch never uses.

    It has five lines a resource. A program waits until the engine takes each one, and gets it back as an
    event.
    """
    if program is None:
        yield
        return
    from pulumi import log

    original_debug, log.debug = log.debug, _ignore
    try:
        yield
    finally:
        log.debug = original_debug


def _ignore(*_: Any, **__: Any) -> None:
    """Replaces `log.debug`."""


def _end_leftovers() -> None:
    """End the coroutines that a program of a failed call left.

    The SDK's own clean-up finds no event loop then, and Python would report that on stderr at any later time;
    of one that was never begun it warns.
    """
    original_hook = sys.unraisablehook
    sys.unraisablehook = lambda error: None if inspect.iscoroutine(error.object) else original_hook(error)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            gc.collect()
    finally:
        sys.unraisablehook = original_hook


class _Stop:
    """Passes each signal to orch on to the engine as SIGTERM, also one from before the engine's start."""

    def __init__(self) -> None:
        self.requested = False
        self._process: subprocess.Popen[str] | None = None

    def begin(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        if self.requested:
            self._pass_on()

    def __call__(self, signum: int, frame: object) -> None:
        self.request()

    def request(self) -> None:
        self.requested = True
        self._pass_on()

    def _pass_on(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


_ENDING = threading.Event()
_IN_THREADS: set[_Stop] = set()


def end_calls() -> None:
    """End engine calls of threads in order, now and from here on: for a process that is to end.

    No signal reaches them. Their callers get Interrupted."""
    _ENDING.set()
    for each in list(_IN_THREADS):
        each.request()


def pause(seconds: float) -> None:
    """Sleep. Raises KeyboardInterrupt on Ctrl-C, and when the process is to end."""
    if _ENDING.wait(seconds):
        raise KeyboardInterrupt


@contextmanager
def _signals_forwarded() -> Iterator[_Stop]:
    """Forward SIGINT, SIGTERM and SIGHUP of orch to the engine while it runs; in a thread, `end_calls`."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        _IN_THREADS.add(stop)
        stop.requested = _ENDING.is_set()
        try:
            yield stop
        finally:
            _IN_THREADS.discard(stop)
        return
    # What a caller has orch ignore, as `nohup` does, stays ignored.
    numbers = [
        each
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _served(
    program: Program | HeldWork | None, wants_events: bool
) -> Iterator[tuple[list[str], queue.Queue[Event | None]]]:
    """The gRPC services the CLI dials back to, and the flags that tell it where."""
    events: queue.Queue[Event | None] = queue.Queue()
    if program is None and not wants_events:
        yield [], events
        return
    import grpc
    from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
    from pulumi.runtime.proto import events_pb2_grpc, language_pb2_grpc

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=_GRPC_CHANNEL_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    flags: list[str] = []
    if program is not None:
        servicer = _work_servicer(program) if isinstance(program, HeldWork) else _program_servicer(program)
        language_pb2_grpc.add_LanguageRuntimeServicer_to_server(servicer, server)
        flags += [f"--client=127.0.0.1:{port}"]
        flags += ["--exec-kind", "auto.inline"] if program is not no_program else []
    if wants_events:
        events_pb2_grpc.add_EventsServicer_to_server(_events_servicer(events), server)
        flags += ["--event-log", f"tcp://127.0.0.1:{port}"]
    server.start()
    try:
        yield flags, events
    finally:
        server.stop(grace=1).wait()


def _program_servicer(program: Program) -> Any:
    """Runs a program in a thread that this process does not wait for at its exit.

    Of a call that failed, the program may wait for ever for a resource that the engine no longer makes.
    """
    from pulumi.automation._server import LanguageServer
    from pulumi.runtime.proto import language_pb2

    class Servicer(LanguageServer):
        def Run(self, request: Any, context: Any) -> Any:
            answer: futures.Future[Any] = futures.Future()
            run = super().Run

            def work() -> None:
                try:
                    answer.set_result(run(request, context))
                except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                    answer.set_exception(error)

            threading.Thread(target=work, daemon=True).start()
            while context.is_active():
                if futures.wait([answer], timeout=0.1).done:
                    return answer.result()
            return language_pb2.RunResponse(bail=True)

    return Servicer(program)


def _work_servicer(held: HeldWork) -> Any:
    from pulumi.automation._server import LanguageServer
    from pulumi.runtime.proto import language_pb2

    class Servicer(LanguageServer):
        def Run(self, request: Any, context: Any) -> Any:
            thread = threading.Thread(target=held.work, args=(context.is_active,), daemon=True)
            if not request.dryRun:
                thread.start()
            while thread.is_alive() and context.is_active():
                thread.join(0.1)
            return language_pb2.RunResponse(bail=True)

    return Servicer(lambda: None)


def _events_servicer(events: queue.Queue[Event | None]) -> Any:
    from google.protobuf import empty_pb2
    from pulumi.runtime.proto import events_pb2_grpc

    class Servicer(events_pb2_grpc.EventsServicer):
        def StreamEvents(self, request_iterator: Any, context: Any) -> Any:
            for request in request_iterator:
                events.put(json.loads(request.event))
            return empty_pb2.Empty()

    return Servicer()


@contextmanager
def without_source_positions() -> Iterator[None]:
    """Register resources without their source positions, which are one line of orch for all nodes.

    The SDK reads the whole call stack for each resource, and the engine writes it with every state (2.5 KB a
    node, measured). It would also show folders of this machine to readers of the state.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 1
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before
