"""Gangs on an API server of memory: made once, cut short and gone on with, looked at cheaply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from kit.kubernetes.gangcases import queue, request, written

from orch.runner.errors import BadTask
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import Conflict, Forbidden, UnknownApi
from orch.runner.kubernetes.gangs.gangs import GangOfAnother, Gangs
from orch.runner.kubernetes.gangs.names import QUEUE_NAME, RELEASED
from orch.runner.kubernetes.gangs.request import GangRequest

Doc = dict[str, Any]
JOBS = "/apis/batch/v1/namespaces/ml/jobs"
PODS = "/api/v1/namespaces/ml/pods"


class Cut(BaseException):
    """The process is killed."""


class Objects:
    """An API server's objects by path. `before` is called with each request, and may raise."""

    def __init__(self) -> None:
        self.documents: dict[str, Doc] = {}
        self.calls: list[tuple[str, str]] = []
        self.missing: set[str] = set()
        self.before: Callable[[str, str], object] = lambda method, path: None
        self._lock = threading.RLock()
        self._uids = 0

    @property
    def client(self) -> KubernetesClient:
        return cast(KubernetesClient, self)

    def add(self, path: str, document: Mapping[str, Any]) -> Doc:
        self._uids += 1
        metadata = {"uid": f"u{self._uids}", **document["metadata"]}
        self.documents[path] = {**document, "metadata": metadata}
        return self.documents[path]

    def find(self, path: str) -> Doc | None:
        self._called("find", path)
        return self.documents.get(path)

    def items(self, path: str, **query: str) -> list[Doc]:
        self._called("items", path)
        if path in self.missing:
            raise UnknownApi("no such kind", status=404)
        selector = dict(each.split("=", 1) for each in query.get("labelSelector", "").split(",") if each)
        field = query.get("fieldSelector", "").partition("=")[2]
        if not path.endswith(("limitranges", "resourcequotas")):
            assert selector or field  # nobody lists what is not the gang's
        rows = [row for key, row in self.documents.items() if key.rpartition("/")[0] == path]
        return [
            row
            for row in rows
            if selector.items() <= row["metadata"].get("labels", {}).items()
            and (not field or row["involvedObject"]["uid"] == field)
        ]

    def create(self, path: str, document: Mapping[str, Any]) -> Doc:
        self._called("create", path)
        with self._lock:
            whole = f"{path}/{document['metadata']['name']}"
            if whole in self.documents:
                raise Conflict("there is one already", status=409, reason="AlreadyExists")
            return self.add(whole, document)

    def apply(self, path: str, document: Mapping[str, Any]) -> Doc:
        self._called("apply", path)
        with self._lock:
            return self.documents.get(path) or self.add(path, document)

    def patch(self, path: str, document: Doc) -> Doc:
        self._called("patch", path)
        with self._lock:
            row = self.documents[path]
            assert document["metadata"].get("uid") == row["metadata"]["uid"]
            for key in ("labels", "annotations"):
                row["metadata"].setdefault(key, {}).update(document["metadata"].get(key, {}))
            row["spec"].update(document.get("spec", {}))
            return row

    def delete(self, path: str, *, propagation: str = "Foreground", uid: str | None = None) -> Doc | None:
        self._called("delete", path)
        row = self.documents.get(path)
        if row is None or uid not in (None, row["metadata"]["uid"]):
            return None
        row["metadata"]["deletionTimestamp"] = "2026-11-27T01:00:00Z"
        return row

    def _called(self, method: str, path: str) -> None:
        self.before(method, path)
        self.calls.append((method, path))


def job_path(wanted: GangRequest) -> str:
    return f"{JOBS}/{wanted.name}"


def gangs(objects: Objects, wanted: GangRequest) -> Gangs:
    return Gangs(objects.client, wanted.queue, pause=lambda _: None)


def test_a_job_that_conflicts_with_what_nobody_sees_is_not_made_for_ever() -> None:
    objects, wanted = Objects(), written("job")

    def refuse(method: str, path: str) -> None:
        if method == "create":
            raise Conflict("a webhook says so", status=409)

    objects.before = refuse
    with pytest.raises(Conflict, match="a webhook says so"):
        gangs(objects, wanted).apply(wanted)


@pytest.mark.parametrize("name", ["job", "kueue", "podgroup", "mounts", "compute-domain"])
def test_a_gang_is_made_once_and_all_it_has_is_the_jobs_own(name: str) -> None:
    objects, wanted = Objects(), written(name)
    here = gangs(objects, wanted)
    assert here.apply(wanted)
    job = objects.documents[job_path(wanted)]
    assert RELEASED in job["metadata"]["annotations"]
    assert job["spec"]["suspend"] is (wanted.queue.gang == "kueue")
    for path, row in objects.documents.items():
        if path != job_path(wanted):
            assert [each["uid"] for each in row["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    calls = len(objects.calls)
    assert here.apply(wanted)
    assert objects.calls[calls:] == [("find", job_path(wanted))]


@pytest.mark.parametrize("name", ["job", "kueue", "mounts"])
def test_a_gang_that_was_cut_short_anywhere_holds_nothing_and_is_gone_on_with(name: str) -> None:
    wanted = written(name)
    whole = Objects()
    gangs(whole, wanted).apply(wanted)
    for at in range(len(whole.calls)):
        objects = Objects()

        def kill(method: str, path: str, objects: Objects = objects, at: int = at) -> None:
            if len(objects.calls) == at:
                raise Cut

        objects.before = kill
        with pytest.raises(Cut):
            gangs(objects, wanted).apply(wanted)
        job = objects.documents.get(job_path(wanted))
        if job is not None:
            assert job["spec"]["suspend"] is True
            assert QUEUE_NAME not in job["metadata"]["labels"]
        objects.before = lambda method, path: None
        assert gangs(objects, wanted).apply(wanted)
        assert objects.documents.keys() == whole.documents.keys()
        assert RELEASED in objects.documents[job_path(wanted)]["metadata"]["annotations"]


def test_two_at_once_make_one_and_none_suspends_what_the_other_let_go() -> None:
    objects, wanted = Objects(), request()
    late = threading.Event()
    seen: list[object] = []

    def watch(method: str, path: str) -> None:
        if method == "create" and threading.current_thread().name == "second":
            late.wait(10)  # it has seen that there is none, and the other one is through by now
        job = objects.documents.get(job_path(wanted))
        if job is not None and RELEASED in job["metadata"]["annotations"]:
            seen.append(job["spec"]["suspend"])

    objects.before = watch
    results: list[bool] = []
    second = threading.Thread(
        target=lambda: results.append(gangs(objects, wanted).apply(wanted)), name="second"
    )
    second.start()
    results.append(gangs(objects, wanted).apply(wanted))
    late.set()
    second.join(10)
    assert results == [True, True]
    assert [path for path in objects.documents if path.startswith(JOBS)] == [job_path(wanted)]
    assert True not in seen


def test_what_kueue_has_started_is_not_touched_again() -> None:
    objects, wanted = Objects(), written("kueue")
    here = gangs(objects, wanted)
    here.apply(wanted)
    objects.documents[job_path(wanted)]["spec"]["suspend"] = False
    here.apply(wanted)
    assert objects.documents[job_path(wanted)]["spec"]["suspend"] is False


def test_a_name_that_is_neither_there_nor_free_is_not_asked_for_without_end() -> None:
    objects, wanted = Objects(), request()

    def refuse(method: str, path: str) -> None:
        if method == "create":
            raise Conflict("there is one already", status=409)

    objects.before = refuse
    with pytest.raises(Conflict):
        gangs(objects, wanted).apply(wanted)
    assert len([call for call in objects.calls if call[0] == "find"]) == 5


def test_a_job_of_another_run_is_left_alone() -> None:
    objects, wanted = Objects(), request()
    objects.add(job_path(wanted), {"metadata": {"name": wanted.name}, "spec": {}})
    with pytest.raises(GangOfAnother, match="not of this run"):
        gangs(objects, wanted).apply(wanted)
    assert [method for method, _ in objects.calls] == ["find"]


def test_one_that_is_still_being_removed_is_waited_for_by_who_asks_again() -> None:
    objects, wanted = Objects(), request()
    here = gangs(objects, wanted)
    here.apply(wanted)
    here.delete(wanted.name)
    assert not here.apply(wanted)
    del objects.documents[job_path(wanted)]
    assert here.apply(wanted)


def test_a_bad_request_makes_nothing() -> None:
    objects = Objects()
    with pytest.raises(BadTask):
        gangs(objects, request()).apply(request(pods=99))
    assert objects.calls == []


def placed(wanted: GangRequest, index: int, owner: str, state: Doc) -> Doc:
    labels = {
        "batch.kubernetes.io/job-name": wanted.name,
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    row = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-27T01:00:00Z"}
    return {
        "metadata": {
            "name": f"{wanted.name}-{index}",
            "labels": labels,
            "ownerReferences": [{"kind": "Job", "uid": owner}],
        },
        "spec": {"nodeName": f"gpu-{index}"},
        "status": {
            "phase": "Running" if "running" in state else "Pending",
            "conditions": [row],
            "containerStatuses": [{"name": "job", "image": "x", "state": state}],
        },
    }


def test_a_look_at_a_gang_that_runs_is_two_requests_and_no_pod_of_an_older_one_counts() -> None:
    objects, wanted = Objects(), request()
    here = gangs(objects, wanted)
    here.apply(wanted)
    uid = objects.documents[job_path(wanted)]["metadata"]["uid"]
    for index in range(2):
        objects.add(f"{PODS}/{index}", placed(wanted, index, uid, {"running": {}}))
    objects.add(f"{PODS}/old", placed(wanted, 0, "another", {"waiting": {"reason": "ErrImagePull"}}))
    objects.calls.clear()
    assert here.look(wanted.name).state == "running"
    assert objects.calls == [("find", job_path(wanted)), ("items", PODS)]


def test_events_are_read_of_what_does_not_start_alone_and_not_by_who_may_not() -> None:
    objects, wanted = Objects(), request(pods=3)
    here = gangs(objects, wanted)
    here.apply(wanted)
    uid = objects.documents[job_path(wanted)]["metadata"]["uid"]
    silent = objects.add(f"{PODS}/0", placed(wanted, 0, uid, {"waiting": {"reason": "ContainerCreating"}}))
    events = "/api/v1/namespaces/ml/events"
    for name, of, reason, text in (
        ("a", uid, "FailedCreate", "Error creating: exceeded quota: gpus, used"),
        ("b", silent["metadata"]["uid"], "FailedMount", "claim is not bound"),
        ("c", "other", "FailedMount", "of another"),
    ):
        objects.add(f"{events}/{name}", {"metadata": {"name": name}, "reason": reason, "message": text})
        objects.documents[f"{events}/{name}"]["involvedObject"] = {"uid": of}
    objects.calls.clear()
    found = here.look(wanted.name)
    assert found.reasons == (
        "1 of 3 pods have a node",
        "its pods cannot be created: exceeded quota: gpus, used",
        "pod 0: on gpu-0: claim is not bound",
    )
    assert len(objects.calls) == 4

    def refuse(method: str, path: str) -> None:
        if path == events:
            raise Forbidden("may not list events", status=403)

    objects.before = refuse
    assert here.look(wanted.name).reasons[0] == "1 of 3 pods have a node"


def test_kueues_older_version_is_asked_where_the_newer_is_not_served() -> None:
    objects, wanted = Objects(), written("kueue")
    here = gangs(objects, wanted)
    here.apply(wanted)
    uid = objects.documents[job_path(wanted)]["metadata"]["uid"]
    new, old = (f"/apis/kueue.x-k8s.io/{each}/namespaces/ml/workloads" for each in ("v1beta2", "v1beta1"))
    objects.missing = {new}
    row = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "32 more needed"}
    objects.add(
        f"{old}/w",
        {
            "metadata": {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": uid}},
            "spec": {},
            "status": {"conditions": [row]},
        },
    )
    assert here.look(wanted.name).reasons == ("Kueue: 32 more needed",)
    objects.calls.clear()
    here.look(wanted.name)
    assert [path for method, path in objects.calls if "kueue" in path] == [old]  # it is remembered
    objects.missing = {new, old}
    with pytest.raises(UnknownApi):
        here.look(wanted.name)


def test_taking_back_waits_for_the_pods_and_tells_what_is_left() -> None:
    objects, wanted = Objects(), request()
    looks = 0

    def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            del objects.documents[f"{PODS}/0"], objects.documents[job_path(wanted)]

    here = Gangs(objects.client, wanted.queue, pause=pause)
    here.apply(wanted)
    uid = objects.documents[job_path(wanted)]["metadata"]["uid"]
    objects.add(f"{PODS}/0", placed(wanted, 0, uid, {"running": {}}))
    left = here.take_back(wanted.name, within_s=0)
    assert [(each.index, each.node) for each in left] == [(0, "gpu-0")]
    assert here.take_back(wanted.name) == ()
    assert looks == 3
    assert here.look(wanted.name).state == "gone"
    assert here.take_back(wanted.name) == ()  # twice is as good as once


def test_only_the_gang_that_was_meant_is_deleted() -> None:
    objects, wanted = Objects(), request()
    here = gangs(objects, wanted)
    here.apply(wanted)
    assert not here.delete(wanted.name, uid="another")
    assert here.delete(wanted.name)
    assert not here.delete("orch-never-000000")


def test_all_gangs_of_a_project_are_listed_and_no_others() -> None:
    objects = Objects()
    for words in ({"run": "b", "attempt": 2}, {"run": "a"}, {"run": "c", "project": "other"}):
        wanted = request(**words)
        gangs(objects, wanted).apply(wanted)
    here = Gangs(objects.client, queue())
    listed = here.listed("0123456789ab")
    assert [(each.run, each.attempt, each.fleet, each.token, each.leaving) for each in listed] == [
        ("a", 0, "pool", "7d0e1f6a", False),
        ("b", 2, "pool", "7d0e1f6a", False),
    ]
