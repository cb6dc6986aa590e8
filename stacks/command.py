"""One call of the Pulumi CLI: our program served to it, its events read, and an end in order.

The CLI runs in a session of its own, so that Ctrl-C reaches orch alone; orch then sends it one SIGTERM (which
the engine takes as "finish what is under way and stop") and waits: it never ends first. With the stock
Automation API a Ctrl-C kills both and leaves a lock and pending creates (measured). The language server and
the event service are the SDK's own.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.stacks.engine import Engine

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
Program = Callable[[], Any]


@dataclass(frozen=True)
class Finished:
    """How a call ended. `interrupted`: it was asked to stop by a signal to orch."""

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
    program: Program | None = None,
    on_event: OnEvent | None = None,
    stdin: str | None = None,
) -> Finished:
    """Run `pulumi WORDS` in `folder` to its end. Events arrive in the calling thread, in order."""
    with _serving(program, on_event is not None) as (flags, events):
        process = subprocess.Popen(
            [str(engine.command), "--non-interactive", *words, *flags],
            cwd=folder,
            env={
                **os.environ,
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
        )
        with _stopping(process) as stopped:
            output = futures.ThreadPoolExecutor(1).submit(process.communicate, stdin)
            while not output.done() or not events.empty():
                try:
                    event = events.get(timeout=0.02)
                except queue.Empty:
                    continue
                if on_event:
                    on_event(event)
            stdout, stderr = output.result()
    while not events.empty() and on_event:
        on_event(events.get_nowait())
    return Finished(process.returncode, stdout, stderr, stopped.is_set())


@contextmanager
def _stopping(process: subprocess.Popen[str]) -> Iterator[threading.Event]:
    """While it runs, SIGINT and SIGTERM to orch become one SIGTERM to it; a further one is passed on too."""
    stopped = threading.Event()

    def pass_on(signum: int, frame: object) -> None:
        stopped.set()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _serving(program: Program | None, wants_events: bool) -> Iterator[tuple[list[str], queue.Queue[Event]]]:
    """The gRPC services the CLI dials back to, and the flags that tell it where."""
    events: queue.Queue[Event] = queue.Queue()
    if program is None and not wants_events:
        yield [], events
        return
    import grpc
    from pulumi.automation._server import LanguageServer
    from pulumi.runtime._grpc_settings import _GRPC_CHANNEL_OPTIONS
    from pulumi.runtime.proto import events_pb2_grpc, language_pb2_grpc

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=_GRPC_CHANNEL_OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    flags: list[str] = []
    if program is not None:
        language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageServer(program), server)
        flags += [f"--client=127.0.0.1:{port}", "--exec-kind", "auto.inline"]
    if wants_events:
        events_pb2_grpc.add_EventsServicer_to_server(_events_servicer(events), server)
        flags += ["--event-log", f"tcp://127.0.0.1:{port}"]
    server.start()
    try:
        yield flags, events
    finally:
        server.stop(grace=1).wait()


def _events_servicer(events: queue.Queue[Event]) -> Any:
    from google.protobuf import empty_pb2
    from pulumi.runtime.proto import events_pb2_grpc

    class Servicer(events_pb2_grpc.EventsServicer):
        def StreamEvents(self, request_iterator: Any, context: Any) -> Any:
            for request in request_iterator:
                events.put(json.loads(request.event))
            return empty_pb2.Empty()

    return Servicer()
