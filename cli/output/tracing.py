"""Which command is traced, and what has a span: `--trace`, or OpenTelemetry's own variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from orch.cli.errors import UsageError, tell
from orch.spec.install import install_hint

if TYPE_CHECKING:
    from orch.runner.events import Processor
    from orch.runner.tracing import Span, Trace
    from orch.stacks.pulumi.progress import Listener, Progress

F = TypeVar("F", bound=Callable[..., Any])


class _Current:
    """The trace of the command that this process carries out."""

    trace: Trace | None = None


def traced(function: F) -> F:
    """A verb with the option `trace`, which is traced where that or the environment says so."""

    @wraps(function)
    def verb(*words: Any, **more: Any) -> Any:
        with tracing(f"orch {function.__name__}", asked=bool(more.get("trace"))):
            return function(*words, **more)

    return cast(F, verb)


@contextmanager
def tracing(name: str, *, asked: bool = False) -> Iterator[None]:
    """Trace the block as a span of this name, below the trace that goes on, in a process that was forked from
    one, and send it at the end. Costs nothing where nobody asks for it.

    Raises UsageError where the command line asks for it and it is not installed."""
    if not asked and not any(name.startswith("OTEL_") for name in os.environ):
        yield
        return
    from orch.runner.tracing import Trace, is_asked_for, missing_library, trace_of

    outer = _Current.trace
    if outer is None and not asked and not is_asked_for(os.environ):
        yield
        return
    if missing := missing_library():
        hint = install_hint("traces")
        if asked:
            raise UsageError(f"OpenTelemetry is not installed: no {missing}", hint=hint)
        if outer is None:
            tell(f"note: no traces are sent: OpenTelemetry is not installed ({hint})")
        yield
        return
    trace = (
        trace_of(name, os.environ) if outer is None else Trace(name, trace_id=outer.id, parent=outer.root.id)
    )
    # What is begun for this command belongs to it, and is traced too.
    before = {each: os.environ.get(each) for each in ("TRACEPARENT", "OTEL_TRACES_EXPORTER")}
    os.environ.update(TRACEPARENT=trace.traceparent, OTEL_TRACES_EXPORTER="otlp")
    _Current.trace = trace
    error: str | None = None
    try:
        yield
    except BaseException as raised:
        error = _word_of(raised)
        raise
    finally:
        _Current.trace = outer
        for each, value in before.items():
            if value is None:
                os.environ.pop(each, None)
            else:
                os.environ[each] = value
        trace.end(trace.root, error)
        _send(trace)


def _word_of(raised: BaseException) -> str | None:
    """Return the cause of a failure: a code or a class; None for an exit with 0. Never its text, which may be
    of programs of the user."""
    import typer  # not by a driver, which needs no command line

    if isinstance(raised, (typer.Exit, SystemExit)):
        code = raised.exit_code if isinstance(raised, typer.Exit) else raised.code
        return f"exit code {code}" if code else None
    word = getattr(raised, "code", None)  # of an OrchError
    return word if isinstance(word, str) else type(raised).__name__


def _send(trace: Trace) -> None:
    from orch import __version__
    from orch.runner.tracing import destination, send

    if problem := send(trace, __version__):
        tell(f"warning: traces were not sent to {destination(os.environ)}: {problem}")


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A part of the command as a span."""
    trace = _Current.trace
    if trace is None:
        yield
        return
    begun = trace.begin(name, None, {f"orch.{key}": value for key, value in attributes.items()})
    try:
        yield
    except BaseException as raised:
        trace.end(begun, _word_of(raised))
        raise
    trace.end(begun)


def hearing(listener: Listener) -> Listener:
    """The listener of an engine call; each resource that it changes is a span."""
    trace = _Current.trace
    if trace is None:
        return listener
    begun: dict[tuple[str, str], Span] = {}

    def hear(event: Progress) -> None:
        from orch.stacks.pulumi.progress import EngineStep

        if isinstance(event, EngineStep):
            key = (event.type, event.name)
            if event.phase == "start":
                words = {"orch.resource": event.name, "orch.type": event.type}
                begun[key] = trace.begin(f"{event.op} {event.type}", None, words)
            elif key in begun:
                trace.end(begun.pop(key), "failed" if event.phase == "failed" else None)
        listener(event)

    return hear


@contextmanager
def run_spans(processor: Processor, run: str) -> Iterator[Processor]:
    """The processor of a run's events; its phases and what nodes do in them are spans."""
    trace = _Current.trace
    if trace is None:
        yield processor
        return
    from orch.runner.tracing import RunSpans

    spans = RunSpans(trace, processor, run)
    try:
        yield spans
    finally:
        spans.close()
