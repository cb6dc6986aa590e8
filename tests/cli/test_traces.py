"""OpenTelemetry traces of commands, as a collector gets them; and commands whose collector is away."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from kit.support import Folder, free_port
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orch.cli.output import tracing
from orch.runner import tracing as traces
from orch.runner.errors import RunConflict
from orch.runner.events import (
    FilesProgress,
    ImageProgress,
    Preparing,
    RankChanged,
    Recorder,
    RunChanged,
)
from orch.runner.tracing import RunSpans, Trace, destination, is_asked_for, send, trace_of
from orch.stacks.pulumi.progress import EngineStep, Note, Progress


class Collector:
    """What a receiver of OTLP over HTTP got, decoded."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.port = 0

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}"}

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def tree(self) -> dict[str, str]:
        """The name of each span's parent, "" of one whose parent is not here."""
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_span_id, "") for span in self.spans}

    def named(self, name: str) -> Any:
        (found,) = (span for span in self.spans if span.name == name)
        return found


def attributes(of: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in of.attributes}


@contextmanager
def receiving(answer: Callable[[BaseHTTPRequestHandler], None] | None = None) -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if answer is not None:
                answer(self)
                return
            assert self.headers["Content-Type"] == "application/x-protobuf"
            collector.paths.append(self.path)
            collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with receiving() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def test_a_command_its_engine_steps_and_its_parts_arrive_as_a_tree(collector: Collector) -> None:
    heard: list[Progress] = []

    def steps() -> None:
        listener = tracing.hearing(heard.append)
        listener(EngineStep("start", "create", "aws:ec2/instance:Instance", "lab-0"))
        listener(EngineStep("start", "create", "aws:ec2/instance:Instance", "lab-1"))
        listener(Note("warning: the image is old"))
        listener(EngineStep("done", "create", "aws:ec2/instance:Instance", "lab-0", 1.0))
        listener(EngineStep("failed", "create", "aws:ec2/instance:Instance", "lab-1", 1.0))

    with tracing.tracing("orch up"), tracing.span("submit", fleet="lab"):
        steps()
    assert len(heard) == 5
    assert collector.paths == ["/v1/traces"]
    assert collector.tree() == {
        "orch up": "",
        "submit": "orch up",
        "create aws:ec2/instance:Instance": "orch up",
    }
    by_node = {
        attributes(span)["orch.resource"]: span for span in collector.spans if span.name.startswith("create")
    }
    assert attributes(by_node["lab-0"]) == {
        "orch.resource": "lab-0",
        "orch.type": "aws:ec2/instance:Instance",
    }
    assert (by_node["lab-0"].status.code, by_node["lab-1"].status.code) == (0, 2)
    assert attributes(collector.named("submit")) == {"orch.fleet": "lab"}
    (resource,) = (each.resource for each in collector.requests[0].resource_spans)
    assert attributes(resource)["service.name"] == "orch"
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)


def test_the_phases_of_a_run_and_what_nodes_do_in_them_are_spans(collector: Collector) -> None:
    seen = Recorder()
    events = (
        RunChanged("train", "provisioning"),
        Preparing(("n0", "n1")),
        Preparing(("n1",)),
        Preparing(()),
        FilesProgress("n0", 0, 900),
        FilesProgress("n0", 900, 900, finished=True),
        ImageProgress("n0", "torch", 0, None),
        ImageProgress("n0", "torch", 5, None, finished=True, seconds=2.0),
        RankChanged("train", 0, "n0", "pulling"),
        RankChanged("train", 0, "n0", "running"),
        RunChanged("train", "running"),
        RankChanged("train", 0, "n0", "failed", 3, "container_exited_with_error", "secret of the job"),
        RunChanged("train", "terminating", "container_exited_with_error"),
        RunChanged("train", "failed", "container_exited_with_error", "secret of the job"),
    )
    with tracing.tracing("orch run"), tracing.run_spans(seen, "train") as processor:
        for event in events:
            processor.handle(event)
    assert seen.events == list(events)
    assert collector.tree() == {
        "orch run": "",
        "provision": "orch run",
        "prepare": "provision",
        "send": "provision",
        "pull": "provision",
        "start": "provision",
        "rank": "orch run",
        "run": "orch run",
        "collect": "orch run",
    }
    phases = [collector.named(name) for name in ("provision", "run", "collect")]
    for before, after in pairwise(phases):
        assert before.end_time_unix_nano <= after.start_time_unix_nano
    rank = collector.named("rank")
    assert attributes(rank) == {"orch.run": "train", "orch.node": "n0", "orch.rank": 0, "orch.exit_code": 3}
    start, pull = collector.named("start"), collector.named("pull")
    assert pull.end_time_unix_nano == start.start_time_unix_nano
    assert (rank.status.code, rank.status.message) == (2, "container_exited_with_error")
    assert rank.end_time_unix_nano > phases[0].end_time_unix_nano, "it goes on while the run runs"
    assert {attributes(each)["orch.node"] for each in collector.spans if each.name == "prepare"} == {
        "n0",
        "n1",
    }
    assert attributes(collector.named("send"))["orch.bytes"] == 900
    assert b"secret" not in b"".join(each.SerializeToString() for each in collector.requests)


def test_a_trace_goes_on_from_a_pipelines_and_into_the_processes_of_the_command(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'a' * 32}-{'b' * 16}-01")
    with tracing.tracing("orch up"):
        for_children = traces.os.environ["TRACEPARENT"]
        with tracing.tracing("up fleet lab"):
            pass
    assert traces.os.environ["TRACEPARENT"] == f"00-{'a' * 32}-{'b' * 16}-01"
    assert {span.trace_id.hex() for span in collector.spans} == {"a" * 32}
    root = collector.named("orch up")
    assert root.parent_span_id.hex() == "b" * 16
    assert for_children == f"00-{'a' * 32}-{root.span_id.hex()}-01"
    assert collector.tree()["up fleet lab"] == "orch up"


@pytest.mark.parametrize(
    ("raised", "word"),
    [
        (RunConflict("the password is hunter2", code="ORCH390"), "ORCH390"),
        (ValueError("hunter2"), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (typer.Exit(7), "exit code 7"),
        (typer.Exit(0), ""),
    ],
    ids=["error", "bug", "interrupt", "exit code", "done"],
)
def test_why_a_command_failed_is_a_word_and_no_text(
    collector: Collector, raised: BaseException, word: str
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(type(raised)), tracing.tracing("orch up"):
        fail()
    (span,) = collector.spans
    assert (span.status.message, span.status.code) == (word, 2 if word else 0)


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, False),
        ({"OTEL_SERVICE_NAME": "ci"}, False),
    ],
)
def test_opentelemetrys_own_variables_switch_it_on_and_off(environment: dict[str, str], asked: bool) -> None:
    assert is_asked_for(environment) is asked


@pytest.mark.parametrize(
    "text", ["", "00-xyz", f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'g' * 32}-{'b' * 16}-01", "-" * 90]
)
def test_a_parent_that_is_none_begins_a_new_trace(text: str) -> None:
    trace = trace_of("orch up", {"TRACEPARENT": text})
    assert trace.id
    assert trace.root.parent is None


def test_where_traces_go_is_told_without_a_password() -> None:
    url = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://ada:hunter2@collector:4318/x?token=hunter2"}
    assert destination(url) == "https://collector:4318"
    assert destination({}) == "http://localhost:4318"
    assert destination({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://[::1"}) == "an endpoint that is no URL"


def test_a_collector_that_is_away_or_hangs_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert send(Trace("orch up"), "1", patience_s=60.0) == "it did not take them", "at its first complaint"
    go = threading.Event()
    with receiving(lambda _: [go.wait(60)].clear()) as silent:
        for name, value in silent.environment.items():
            monkeypatch.setenv(name, value)
        assert send(Trace("orch up"), "1", patience_s=0.2) == "no answer within 0.2 s"
        go.set()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "no url")
    assert send(Trace("orch up"), "1", patience_s=60.0) is not None


def test_there_is_an_end_to_how_many_spans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_SPANS", 3)
    trace = Trace("orch up")
    for _ in range(5):
        trace.end(trace.begin("create"))
    assert (len(trace.spans), trace.dropped) == (3, 3)


def test_events_come_from_several_threads() -> None:
    trace = Trace("orch run")
    spans = RunSpans(trace, Recorder(), "train")
    spans.handle(RunChanged("train", "provisioning"))

    def pull(number: int) -> None:
        for _ in range(50):
            spans.handle(ImageProgress(f"n{number}", "torch", 0, None))
        spans.handle(ImageProgress(f"n{number}", "torch", 9, None, finished=True))

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.close()
    assert [span.name for span in trace.spans].count("pull") == 8
    assert all(span.ended is not None for span in trace.spans if span is not trace.root)


def test_a_command_that_is_not_traced_loads_nothing_of_it() -> None:
    code = (
        "import sys; from orch.cli.verbs import load; load('up'); load('run'); load('apply')\n"
        "from orch.cli.output.tracing import tracing, span, hearing\n"
        "with tracing('orch up'), span('submit'):\n    assert hearing(print) is print\n"
        "print([name for name in sys.modules if 'opentelemetry' in name or name == 'orch.runner.tracing'])"
    )
    environment = {name: value for name, value in traces.os.environ.items() if not name.startswith("OTEL")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("orch.yml", "project: lab\n")
    made.write("task.yml", "type: task\nname: job\ncommands: [hostname]\n")
    return made


def test_the_command_line_sends_its_trace_and_says_where_that_failed(folder: Folder) -> None:
    """A run that fails before it is submitted, for no fleet is up: its trace is sent all the same."""
    with receiving() as collector:
        said = folder.orch("run", "task.yml", "--trace", env=collector.environment)
        assert said.code != 0
        assert "traces" not in said.err
        assert collector.tree()["orch run"] == ""
        root = collector.named("orch run")
        assert (root.status.code, root.status.message) == (2, "NoFit")
    plain = folder.orch("run", "task.yml")
    away = folder.orch("run", "task.yml", env=collector.environment)
    assert away.code == plain.code
    assert away.out == plain.out
    warning = f"warning: traces were not sent to http://127.0.0.1:{collector.port}: it did not take them\n"
    assert away.err.replace(warning, "") == plain.err
    assert warning in away.err


def test_a_rank_that_does_not_start_is_a_start_that_failed() -> None:
    trace = Trace("orch run")
    spans = RunSpans(trace, Recorder(), "train")
    spans.handle(RunChanged("train", "provisioning"))
    spans.handle(RankChanged("train", 0, "n0", "failed", None, "instance_unreachable", "no route"))
    spans.handle(RunChanged("train", "failed", "job_failed"))
    spans.close()
    found = {span.name: span.error for span in trace.spans}
    assert found == {"orch run": None, "provision": "job_failed", "start": "instance_unreachable"}
