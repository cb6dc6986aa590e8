"""Calls of an API server: what is asked, what comes back, and each way to be refused."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.kubeserver import Answer, Call, KubeServer, kube_server, status

from orch.runner.kubernetes import transport
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import (
    AdmissionDenied,
    ApiRefusal,
    CertificateRefused,
    ClusterUnreachable,
    Conflict,
    Forbidden,
    Invalid,
    ManagedByOthers,
    NotFound,
    QuotaExceeded,
    ServerError,
    TooManyRequests,
    Unauthorized,
    UnknownApi,
)
from orch.spec.errors import ExitCode

JOBS = api_path("batch/v1", "jobs", "space")
PODS = api_path("v1", "pods", "space")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: KubeServer) -> Iterator[KubernetesClient]:
    client = KubernetesClient.open(str(server.kubeconfig()))
    yield client
    client.close()


def refused(server: KubeServer, client: KubernetesClient, answer: Answer, path: str = PODS) -> ApiRefusal:
    server.answer = lambda call: answer
    with pytest.raises(ApiRefusal) as caught:
        client.create(path, {"kind": "Pod"})
    return caught.value


def test_paths_are_those_of_the_api() -> None:
    assert api_path("v1", "nodes") == "/api/v1/nodes"
    assert api_path("batch/v1", "jobs", "a", "b") == "/apis/batch/v1/namespaces/a/jobs/b"
    assert api_path("v1", "pods", "a", "b/../c", "log") == "/api/v1/namespaces/a/pods/b%2F..%2Fc/log"


def test_a_document_is_asked_for_with_the_token(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: Answer({"kind": "Job", "metadata": {"name": "x"}})
    assert client.get(f"{JOBS}/x", resourceVersion="0")["kind"] == "Job"
    (call,) = server.calls
    assert (call.method, call.path, call.words) == ("GET", f"{JOBS}/x", {"resourceVersion": "0"})
    assert call.headers["authorization"] == "Bearer sesame-open"


def test_what_is_not_there_is_none_to_find(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: status(404, "NotFound", 'jobs.batch "x" not found', name="x", kind="jobs")
    assert client.find(f"{JOBS}/x") is None
    with pytest.raises(NotFound, match=r"there is no jobs.batch x in namespace space"):
        client.get(f"{JOBS}/x")
    assert client.delete(f"{JOBS}/x") is None


def test_a_kind_that_is_not_installed_is_told_from_a_missing_object(
    server: KubeServer, client: KubernetesClient
) -> None:
    server.answer = lambda call: Answer(b"404 page not found\n", 404)
    with pytest.raises(UnknownApi, match=r"the cluster has no workloads.kueue.x-k8s.io") as caught:
        client.get(api_path("kueue.x-k8s.io/v1beta2", "workloads"))
    assert "installed" in (caught.value.hint or "")


def test_lists_are_read_page_by_page(server: KubeServer, client: KubernetesClient) -> None:
    pages = {"": ([1, 2], "a"), "a": ([3], "b"), "b": ([4], None)}

    def answer(call: Call) -> Answer:
        rows, more = pages[call.words.get("continue", "")]
        return Answer({"items": rows, "metadata": {"continue": more} if more else {}})

    server.answer = answer
    assert client.items(PODS, labelSelector="a=b") == [1, 2, 3, 4]
    assert [call.words["limit"] for call in server.calls] == ["500"] * 3
    assert {call.words["labelSelector"] for call in server.calls} == {"a=b"}


def test_a_list_that_expired_between_its_pages_is_read_anew(
    server: KubeServer, client: KubernetesClient
) -> None:
    seen: list[str] = []

    def answer(call: Call) -> Answer:
        seen.append(call.words.get("continue", ""))
        if seen == ["", "a"]:
            return status(410, "Expired", "The provided continue parameter is too old")
        return Answer({"items": [1], "metadata": {"continue": "a" if seen[-1] == "" else ""}})

    server.answer = answer
    assert client.items(PODS) == [1, 1]
    assert seen == ["", "a", "", "a"]


def test_applying_is_server_side_as_orch_and_forces_nothing(
    server: KubeServer, client: KubernetesClient
) -> None:
    server.answer = lambda call: Answer(call.document)
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    assert client.apply(f"{JOBS}/x", document) == document
    (call,) = server.calls
    assert (call.method, call.words["fieldManager"], call.words["force"]) == ("PATCH", "orch", "false")
    assert call.headers["content-type"] == "application/apply-patch+yaml"


def test_a_conflict_names_the_managers_and_their_fields(server: KubeServer, client: KubernetesClient) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl-edit" using batch/v1',
            "field": field,
        }
        for field in (".spec.suspend", ".metadata.labels.a")
    ]
    server.answer = lambda call: status(409, "Conflict", "Apply failed with 2 conflicts", causes=causes)
    with pytest.raises(ManagedByOthers) as caught:
        client.apply(f"{JOBS}/x", {})
    assert caught.value.managers == (("kubectl-edit", (".spec.suspend", ".metadata.labels.a")),)
    assert "kubectl-edit: .spec.suspend, .metadata.labels.a" in caught.value.text()


def test_deleting_says_how_and_what(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: Answer({"kind": "Status"})
    client.delete(f"{JOBS}/x", uid="u-1", grace_s=0)
    client.delete(f"{JOBS}/x", propagation="Background")
    first, second = (call.document for call in server.calls)
    assert first["propagationPolicy"] == "Foreground"
    assert (first["preconditions"], first["gracePeriodSeconds"]) == ({"uid": "u-1"}, 0)
    assert (second["propagationPolicy"], "preconditions" in second) == ("Background", False)
    server.answer = lambda call: status(409, "Conflict", "the UID in the precondition (u-1) does not match")
    assert client.delete(f"{JOBS}/x", uid="u-1") is None
    with pytest.raises(Conflict):
        client.delete(f"{JOBS}/x")


REFUSALS: list[tuple[Answer, type[ApiRefusal], str]] = [
    (status(401, "Unauthorized", "Unauthorized"), Unauthorized, "does not accept your credentials"),
    (
        status(
            403,
            "Forbidden",
            'pods is forbidden: User "system:serviceaccount:a:b" cannot create resource "pods" in API '
            'group "" in the namespace "space"',
            kind="pods",
        ),
        Forbidden,
        "system:serviceaccount:a:b may not create pods in namespace space",
    ),
    (
        status(
            403,
            "Forbidden",
            'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: '
            "requests.nvidia.com/gpu=56, limited: requests.nvidia.com/gpu=60",
        ),
        QuotaExceeded,
        "quota gpus leaves no room for pods in namespace space",
    ),
    (
        status(403, "Forbidden", 'admission webhook "guard.example.org" denied the request: no root'),
        AdmissionDenied,
        "guard.example.org: no root",
    ),
    (
        status(403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:v1.36": root'),
        AdmissionDenied,
        "pod security level",
    ),
    (
        status(
            403,
            "Forbidden",
            'jobs.batch "x" is forbidden: unable to create new content in namespace space because it is '
            "being terminated",
            causes=[
                {"reason": "NamespaceTerminating", "field": "metadata.namespace", "message": "terminated"}
            ],
        ),
        AdmissionDenied,
        "namespace space is being deleted",
    ),
    (
        status(
            403, "Forbidden", 'pods "x" is forbidden: maximum cpu usage per Container is 2, but limit is 4'
        ),
        AdmissionDenied,
        "maximum cpu usage per Container is 2",
    ),
    (
        status(
            422,
            "Invalid",
            "ValidatingAdmissionPolicy 'no-latest' with binding 'all' denied request: image has no tag",
        ),
        AdmissionDenied,
        "no-latest: image has no tag",
    ),
    (
        status(
            422,
            "Invalid",
            "Pod is invalid",
            causes=[{"reason": "FieldValueInvalid", "field": "spec.nodeName", "message": "must be short"}],
        ),
        Invalid,
        "spec.nodeName: must be short",
    ),
    (
        status(400, "BadRequest", 'strict decoding error: unknown field "spec.x"'),
        Invalid,
        'unknown field "spec.x"',
    ),
    (status(409, "AlreadyExists", 'pods "x" already exists'), Conflict, "already"),
    (status(500, "InternalError", "etcdserver: request timed out"), ServerError, "request timed out"),
    (
        status(500, "InternalError", 'failed calling webhook "mjob.kb.io": connection refused'),
        ServerError,
        "webhook mjob.kb.io of the cluster does not answer",
    ),
    (Answer(b"<html>sorry</html>", 502), ServerError, "<html>sorry</html>"),
    (Answer(b"moved", 302, {"Location": "https://elsewhere.example"}), ServerError, "no API server"),
    (Answer(b"not json"), ServerError, "not json"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), REFUSALS, ids=lambda each: getattr(each, "__name__", ""))
def test_each_refusal_is_an_error_of_its_cause(
    server: KubeServer, client: KubernetesClient, answer: Answer, kind: type[ApiRefusal], text: str
) -> None:
    error = refused(server, client, answer)
    assert type(error) is kind
    assert text in error.text()
    assert "sesame-open" not in error.text()
    assert error.where == f"lab (https://127.0.0.1:{server.port})"
    assert error.exit_code in (ExitCode.HOSTS, ExitCode.CONFIG)
    assert len(server.calls) == 1, "what may have been done is not done twice"


def test_a_forbidden_verb_says_what_grants_it(server: KubeServer, client: KubernetesClient) -> None:
    said = 'User "dana" cannot list resource "nodes" in API group "" at the cluster scope'
    server.answer = lambda call: status(403, "Forbidden", said)
    with pytest.raises(Forbidden, match="dana may not list nodes") as caught:
        client.items(api_path("v1", "nodes"))
    assert caught.value.hint == (
        "whoever runs the cluster grants it: a ClusterRole with `list` on `nodes`, bound to dana"
    )


def test_what_a_server_says_is_short_and_moves_no_cursor(
    server: KubeServer, client: KubernetesClient
) -> None:
    error = refused(server, client, status(500, "InternalError", "\x1b[2Jerror: gone\r" + "x" * 100_000))
    assert "\x1b" not in error.text()
    assert len(error.text()) < 3000


def test_too_many_requests_are_put_off_as_long_as_the_server_asks(
    server: KubeServer, client: KubernetesClient
) -> None:
    answers = [
        Answer(status(429, "TooManyRequests", "slow down").document, 429, {"Retry-After": "1"}),
        Answer({}),
    ]
    server.answer = lambda call: answers.pop(0)
    client.create(PODS, {})
    assert len(server.calls) == 2


def test_patience_with_too_many_requests_ends(
    server: KubeServer, client: KubernetesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PATIENCE_S", 1.0)
    error = refused(server, client, Answer({}, 429, {"Retry-After": "3600"}))
    assert isinstance(error, TooManyRequests)
    assert len(server.calls) == 1


def test_reading_and_applying_go_on_after_a_broken_answer(
    server: KubeServer, client: KubernetesClient
) -> None:
    for ask in (lambda: client.get(PODS), lambda: client.apply(f"{JOBS}/x", {})):
        answers = [
            Answer({}, 503),
            status(500, "InternalError", "etcdserver: leader changed"),
            Answer({"a": 1}),
        ]
        server.answer = lambda call, answers=answers: answers.pop(0)
        assert ask() == {"a": 1}


def test_an_answer_that_is_cut_off_is_told(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: Answer({"items": ["x" * 1000]}, cut=True)
    with pytest.raises(ClusterUnreachable, match="cannot be talked to"):
        client.create(PODS, {})


def test_a_token_that_is_no_longer_taken_is_fetched_once_more(server: KubeServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old-token\n")
    client = KubernetesClient.open(str(server.kubeconfig(user={"tokenFile": "token"})))

    def answer(call: Call) -> Answer:
        if call.headers["authorization"] == "Bearer new-token":
            return Answer({"ok": True})
        token.write_text("new-token")
        return status(401, "Unauthorized", "Unauthorized")

    server.answer = answer
    assert client.create(PODS, {}) == {"ok": True}
    assert [call.headers["authorization"] for call in server.calls] == [
        "Bearer old-token",
        "Bearer new-token",
    ]
    server.answer = lambda call: status(401, "Unauthorized", "Unauthorized")
    with pytest.raises(Unauthorized):
        client.get(PODS)
    assert len(server.calls) == 4


def test_a_certificate_of_another_authority_is_refused_at_once(server: KubeServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with kube_server(tmp_path / "other") as other:
        config = other.kubeconfig(server=f"https://127.0.0.1:{server.port}")
    with pytest.raises(CertificateRefused, match="not trusted") as caught:
        KubernetesClient.open(str(config)).get(PODS)
    assert "made anew" in (caught.value.hint or "")
    assert server.calls == []


def test_a_certificate_for_another_name_is_refused_unless_that_is_expected(tmp_path: Path) -> None:
    with kube_server(tmp_path, hosts=("api.internal",)) as server:
        with pytest.raises(CertificateRefused) as caught:
            KubernetesClient.open(str(server.kubeconfig())).get(PODS)
        assert "tls-server-name" in (caught.value.hint or "")
        expected = server.kubeconfig("named", tls_server_name="api.internal")
        assert KubernetesClient.open(str(expected)).get(PODS) == {}
        unchecked = server.kubeconfig("unchecked", insecure_skip_tls_verify=True)
        assert KubernetesClient.open(str(unchecked)).get(PODS) == {}


def test_a_server_that_is_not_there_is_told(server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # With the usual patience this would be a test of half a minute.
    monkeypatch.setattr(transport, "REFUSED_S", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = server.kubeconfig(server=f"https://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(ClusterUnreachable, match="refuses connections"):
            KubernetesClient.open(str(config)).get(PODS)
    config = server.kubeconfig(server="https://no-such-host.invalid")
    with pytest.raises(ClusterUnreachable, match="does not resolve"):
        KubernetesClient.open(str(config)).get(PODS)


def test_a_server_that_speaks_no_tls_is_told(server: KubeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            while True:
                try:
                    connection, _ = plain.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        config = server.kubeconfig(server=f"https://127.0.0.1:{plain.getsockname()[1]}")
        with pytest.raises(ClusterUnreachable, match="no encrypted connection"):
            KubernetesClient.open(str(config)).get(PODS)


def test_rights_are_asked_for(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: Answer({"status": {"allowed": True, "resourceRules": [{"verbs": ["*"]}]}})
    assert client.can("create", "pods", namespace="space", subresource="exec")
    assert client.rules("space") == [{"verbs": ["*"]}]
    server.answer = lambda call: Answer({"status": {"allowed": False}})
    assert not client.can("list", "nodes")
    asked = server.calls[0].document["spec"]["resourceAttributes"]
    assert (asked["verb"], asked["resource"], asked["subresource"]) == ("create", "pods", "exec")


def event(kind: str, version: int, name: str = "p") -> bytes:
    meta = {"name": name, "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": meta}}).encode() + b"\n"


def test_a_watch_goes_on_where_it_was_and_begins_anew_where_that_is_forgotten(
    server: KubeServer, client: KubernetesClient
) -> None:
    gone = json.dumps(
        {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    ).encode()
    streams: list[list[bytes]] = [
        [event("ADDED", 11), event("BOOKMARK", 15)],
        [event("MODIFIED", 16), gone + b"\n"],
        [event("DELETED", 31)],
    ]
    versions = ["10", "30"]

    def answer(call: Call) -> Answer:
        if call.words.get("watch") == "true":
            return Answer(pieces=iter(streams.pop(0)))
        return Answer({"items": [{"a": versions[0]}], "metadata": {"resourceVersion": versions.pop(0)}})

    server.answer = answer
    until = threading.Event()
    seen: list[tuple[str, Any]] = []
    for kind, document in client.watch(PODS, until, labelSelector="a=b"):
        seen.append((kind, document["metadata"]["resourceVersion"]))
        if kind == "DELETED":
            until.set()
    assert seen == [("SYNC", "10"), ("ADDED", "11"), ("MODIFIED", "16"), ("SYNC", "30"), ("DELETED", "31")]
    watched = [call.words for call in server.calls if call.words.get("watch")]
    assert [words["resourceVersion"] for words in watched] == ["10", "15", "30"]
    assert {words["allowWatchBookmarks"] for words in watched} == {"true"}
    assert {call.words["labelSelector"] for call in server.calls} == {"a=b"}


def test_a_watch_ends_when_nobody_wants_it_also_in_silence(
    server: KubeServer, client: KubernetesClient
) -> None:
    quiet = threading.Event()

    def silent() -> Iterator[bytes]:
        quiet.wait(30)
        yield b""

    def answer(call: Call) -> Answer:
        if call.words.get("watch") == "true":
            return Answer(pieces=silent())
        return Answer({"items": [], "metadata": {"resourceVersion": "1"}})

    server.answer = answer
    until = threading.Event()
    threading.Timer(0.3, until.set).start()
    assert [kind for kind, _ in client.watch(PODS, until)] == ["SYNC"]
    quiet.set()


def test_a_watch_that_is_not_allowed_says_so(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: status(403, "Forbidden", "no")
    with pytest.raises(Forbidden):
        next(iter(client.watch(PODS, threading.Event())))


def test_many_threads_share_a_client(server: KubeServer, client: KubernetesClient) -> None:
    server.answer = lambda call: Answer({"n": call.words["n"]})
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(24) as pool:
        got = list(pool.map(lambda n: client.get(PODS, n=str(n))["n"], range(200)))
    assert got == [str(n) for n in range(200)]


def test_the_time_is_that_of_the_server(
    server: KubeServer, client: KubernetesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = datetime.now(timezone.utc)
    assert before <= client.now() <= datetime.now(timezone.utc)
    later = format_datetime(before + timedelta(hours=3), usegmt=True)
    monkeypatch.setattr(
        "kit.kubernetes.kubeserver._Handler.date_time_string", lambda self, timestamp=None: later
    )
    client.get("/api/v1/pods")
    assert timedelta(minutes=178) < client.now() - before < timedelta(minutes=182)
    monkeypatch.setattr(
        "kit.kubernetes.kubeserver._Handler.date_time_string", lambda self, timestamp=None: "none"
    )
    client.get("/api/v1/pods")
    assert timedelta(minutes=178) < client.now() - before < timedelta(minutes=182)
