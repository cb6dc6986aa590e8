"""What a command does as spans of OpenTelemetry: events become records, which are sent once it has ended.

While the command works it only keeps small records: no library is loaded and no thread begun, so that
processes can be forked. No text of programs is in a span, which could hold a secret: names, words of orch,
numbers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

from orch.runner.events import (
    Event,
    FilesProgress,
    ImageProgress,
    Preparing,
    Processor,
    RankChanged,
    RunChanged,
)

PATIENCE_S = 2.0
"""How long the end of a command waits for a collector."""
MOST_SPANS = 20_000
LIBRARIES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# The one that OpenTelemetry's specification gives OTLP over HTTP.
_DEFAULT_ENDPOINT = "http://localhost:4318"

Value = str | int | float | bool
Attributes = Mapping[str, Value]
REFUSED = "it did not take them"


@dataclass
class Span:
    """Something that took time. Moments are nanoseconds since the epoch; `ended` is None while it goes on.

    `error`: a word for why it failed."""

    name: str
    id: int
    parent: int | None
    began: int
    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    ended: int | None = None
    error: str | None = None


class Trace:
    """The spans of one command. Thread-safe.

    `parent`: the span of another process that this one works for.
    """

    def __init__(self, name: str, *, trace_id: int | None = None, parent: int | None = None) -> None:
        self.id = _random(16) if trace_id is None else trace_id
        self._lock = threading.Lock()
        self.spans: list[Span] = []
        self.dropped = 0
        self.root = self.begin(name, parent)

    def begin(
        self,
        name: str,
        parent: int | None = None,
        attributes: Attributes | None = None,
        *,
        began: int | None = None,
    ) -> Span:
        """Begin a span, below the root if nothing else is said, and now."""
        if parent is None and self.spans:
            parent = self.spans[0].id
        span = Span(name, _random(8), parent, began or time.time_ns(), dict(attributes or {}))
        with self._lock:
            if len(self.spans) < MOST_SPANS:
                self.spans.append(span)
            else:
                self.dropped += 1
        return span

    def end(self, span: Span, error: str | None = None, attributes: Attributes | None = None) -> None:
        """End a span; one that has ended stays as it is."""
        with self._lock:
            if span.ended is None:
                span.ended, span.error = time.time_ns(), error
                span.attributes.update(attributes or {})

    @property
    def traceparent(self) -> str:
        """The root as W3C, "Trace Context", writes it, for processes that are begun."""
        return f"00-{self.id:032x}-{self.root.id:016x}-01"


def trace_of(name: str, environment: Mapping[str, str]) -> Trace:
    """A trace that goes on from TRACEPARENT of the environment, where that has one: a pipeline's."""
    words = environment.get("TRACEPARENT", "").split("-")
    try:
        sizes = [len(each) for each in words]
        if sizes == [2, 32, 16, 2] and (trace_id := int(words[1], 16)) and (parent := int(words[2], 16)):
            return Trace(name, trace_id=trace_id, parent=parent)
    except ValueError:
        pass
    return Trace(name)


def _random(size: int) -> int:
    return int.from_bytes(os.urandom(size), "big") or 1


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    return exporter in ("", "otlp") and bool(exporter or any(environment.get(name) for name in _ENDPOINTS))


def missing_library() -> str | None:
    """The first library that is not installed. Loads none of them but the packages they are in."""
    for name in LIBRARIES:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:
            return name
    return None


def destination(environment: Mapping[str, str]) -> str:
    """Where traces go, without what a URL may have of a password."""
    url = next((environment[name] for name in _ENDPOINTS if environment.get(name)), _DEFAULT_ENDPOINT)
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "an endpoint that is no URL"


def send(trace: Trace, version: str, *, patience_s: float = PATIENCE_S) -> str | None:
    """Send what there is to the collector that OpenTelemetry's variables name; what went wrong, in words.

    Returns after `patience_s` at the latest, and raises nothing."""
    over = threading.Event()
    result: list[str | None] = []

    def work() -> None:
        try:
            result.append(None if _export(trace, version, patience_s, over) else REFUSED)
        except Exception as error:  # noqa: BLE001 - nothing that a collector or a library does fails a command
            result.append(type(error).__name__)
        over.set()

    threading.Thread(target=work, name="orch-traces", daemon=True).start()
    if not over.wait(patience_s):
        return f"no answer within {patience_s:g} s"
    return result[0] if result else REFUSED


class _FirstComplaint(logging.Handler):
    """The library waits and tries again where a collector is away, and tells that in its log: a command does
    not wait for another try."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__(logging.WARNING)
        self._over = over

    def emit(self, record: logging.LogRecord) -> None:
        del record
        self._over.set()


def _export(trace: Trace, version: str, patience_s: float, over: threading.Event) -> bool:
    logger, complaint = logging.getLogger("opentelemetry.exporter"), _FirstComplaint(over)
    logger.addHandler(complaint)
    logger.propagate = False  # what became of it is told once, by the caller
    try:
        return _export_spans(trace, version, patience_s)
    finally:
        logger.removeHandler(complaint)


def _export_spans(trace: Trace, version: str, patience_s: float) -> bool:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    # What the user's variables say of the service comes first.
    resource = Resource({"service.name": "orch", "service.version": version}).merge(Resource.create())
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):  # its default
        resource = resource.merge(Resource({"service.name": "orch"}))
    scope = InstrumentationScope("orch", version)

    def context(number: int) -> SpanContext:
        return SpanContext(trace.id, number, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    now = time.time_ns()
    spans = [
        ReadableSpan(
            each.name,
            context(each.id),
            None if each.parent is None else context(each.parent),
            resource,
            each.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, each.error) if each.error else Status(StatusCode.UNSET),
            start_time=each.began,
            end_time=each.ended or now,
            instrumentation_scope=scope,
        )
        for each in trace.spans
    ]
    timeout = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{each}TIMEOUT") for each in ("", "TRACES_"))
    exporter = OTLPSpanExporter(timeout=None if timeout else 2 * patience_s)
    return exporter.export(spans) is SpanExportResult.SUCCESS


_PHASES = {"pending": "wait", "provisioning": "provision", "running": "run", "terminating": "collect"}


class RunSpans:
    """A processor that makes spans of a run's events and passes each on.

    The phases `wait`, `provision`, `run` and `collect` follow each other. In `provision`: `prepare`, `send`,
    `pull` and `start` of each node, each as long as it takes there. A `rank` lasts as its command does.
    """

    def __init__(self, trace: Trace, processor: Processor, run: str) -> None:
        self._trace, self._processor, self._run = trace, processor, run
        self._lock = threading.Lock()
        self._phase: Span | None = None
        self._open: dict[tuple[str, str], Span] = {}
        self._ready: dict[str, int] = {}

    def handle(self, event: Event, /) -> None:
        with self._lock:
            self._see(event)
        self._processor.handle(event)

    def close(self) -> None:
        """The run is not seen any longer."""
        with self._lock:
            self._end_phase(None)

    def _see(self, event: Event) -> None:
        if isinstance(event, RunChanged):
            error = None if event.status != "failed" else event.reason or "failed"
            self._end_phase(error, ranks=event.status not in ("running", "terminating"))
            if event.status in _PHASES:
                self._phase = self._trace.begin(_PHASES[event.status], None, {"orch.run": self._run})
        elif isinstance(event, RankChanged):
            self._see_rank(event)
        elif isinstance(event, ImageProgress):
            self._end("send", event.node)
            self._step("pull", event.node, over=event.finished, image=event.image)
        elif isinstance(event, FilesProgress):
            self._step("send", event.node, over=event.finished, bytes=event.total_bytes)
        elif isinstance(event, Preparing):
            for word, node in [key for key in self._open if key[0] == "prepare"]:
                if node not in event.nodes:
                    self._end(word, node)
            for node in event.nodes:
                self._step("prepare", node, over=False)

    def _see_rank(self, event: RankChanged) -> None:
        error = None if event.status != "failed" else event.reason or "failed"
        code = {} if event.exit_code is None else {"orch.exit_code": event.exit_code}
        own = {"orch.node": event.node, "orch.rank": event.rank}
        key = ("rank", event.node)
        if event.status in ("running", "failed") and key not in self._open and self._phase is not None:
            # Nobody tells when a node began to start its rank: it had all it needed then.
            began = max(self._phase.began, self._ready.get(event.node, 0))
            self._trace.end(self._trace.begin("start", self._phase.id, own, began=began), error)
        if event.status == "running" and key not in self._open:
            self._open[key] = self._trace.begin("rank", None, {"orch.run": self._run, **own})
        elif event.status in ("done", "failed", "terminated") and key in self._open:
            self._trace.end(self._open.pop(key), error, code)

    def _step(self, word: str, node: str, *, over: bool, **attributes: str | int) -> None:
        key = (word, node)
        if key not in self._open:
            named = {f"orch.{name}": value for name, value in attributes.items()}
            parent = self._phase.id if self._phase is not None else None
            self._open[key] = self._trace.begin(word, parent, {"orch.node": node, **named})
        if over:
            self._end(word, node)

    def _end(self, word: str, node: str) -> None:
        span = self._open.pop((word, node), None)
        if span is not None:
            self._trace.end(span)
            self._ready[node] = span.ended or 0

    def _end_phase(self, error: str | None, *, ranks: bool = True) -> None:
        """`ranks`: those end with it that nobody told of."""
        for word, node in list(self._open):
            if ranks or word != "rank":
                self._end(word, node)
        if self._phase is not None:
            self._trace.end(self._phase, error)
        self._phase = None
