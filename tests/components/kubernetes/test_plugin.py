"""The provider of ours for objects of Kubernetes: whose an object is, what is drift, what is left."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pulumi.provider.experimental.property_value import PropertyValue

from orch.components.kubernetes.account.facts import MARK
from orch.components.kubernetes.objects.handler import ObjectHandler, shared
from orch.components.kubernetes.plugin import KubernetesProvider, official
from orch.providers.orch.handler import LeftBehind, ProviderError, differences
from orch.runner.hosts.registration import FORCED
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.errors import ClusterUnreachable, Forbidden, ManagedByOthers, NotFound

QUEUE = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/orch-lab"
SPACE = "/api/v1/namespaces/lab"
Doc = dict[str, Any]


class Server:
    """An API server in memory: what was called, and objects by path. `lingers`: looks until one is gone."""

    def __init__(self) -> None:
        self.objects: dict[str, Doc] = {}
        self.lists: dict[str, list[Doc] | Exception] = {}
        self.calls: list[tuple[str, str]] = []
        self.owned_by: str | None = None
        self.lingers = 0
        self._going: dict[str, int] = {}

    def find(self, path: str) -> Doc | None:
        if path in self._going:
            self._going[path] -= 1
            if self._going[path] < 0:
                del self._going[path]
                self.objects.pop(path, None)
        return copy.deepcopy(self.objects.get(path))

    def get(self, path: str) -> Doc:
        found = self.find(path)
        if found is None:
            raise NotFound(f"there is no {path}")
        return found

    def items(self, path: str) -> list[Doc]:
        rows = self.lists.get(path, [])
        if isinstance(rows, Exception):
            raise rows
        return rows

    def apply(self, path: str, document: Doc, **query: str) -> Doc:
        self.calls.append(("apply", query["force"]))
        if self.owned_by is not None and query["force"] == "false":
            fields = ((self.owned_by, (".spec.resourceGroups",)),)
            raise ManagedByOthers(f"fields of {path} belong to {self.owned_by}", managers=fields)
        known = self.objects.get(path, {"metadata": {"uid": f"uid-{len(self.calls)}"}})
        meta = {**known["metadata"], **document["metadata"]}
        self.objects[path] = {**known, **copy.deepcopy(document), "metadata": meta}
        return self.objects[path]

    def delete(self, path: str, **more: Any) -> None:
        self.calls.append(("delete", str(more.get("uid"))))
        self._going[path] = self.lingers
        self.objects[path]["metadata"]["deletionTimestamp"] = "now"
        self.objects[path]["metadata"]["finalizers"] = ["kueue.x-k8s.io/resource-in-use"]


def queue(gpus: str = "32", mark: str = "lab-abc123") -> Doc:
    resources = [{"name": "cpu", "nominalQuota": "64"}, {"name": "nvidia.com/gpu", "nominalQuota": gpus}]
    groups = [
        {"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "f", "resources": resources}]}
    ]
    meta = {"name": "orch-lab", "labels": {MARK: mark}}
    api = "kueue.x-k8s.io/v1beta2"
    return {"apiVersion": api, "kind": "ClusterQueue", "metadata": meta, "spec": {"resourceGroups": groups}}


def namespace(mark: str = "lab-abc123") -> Doc:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lab", "labels": {MARK: mark}}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def handler(server: Server) -> Callable[..., ObjectHandler]:
    def made(kind: str = "ClusterQueue", gone_s: float = 30.0) -> ObjectHandler:
        return ObjectHandler(kind, lambda: cast(KubernetesClient, server), pause_s=0.0, gone_s=gone_s)

    return made


def state_of(made: ObjectHandler, inputs: Doc) -> Doc:
    identity, outputs = made.create(copy.deepcopy(inputs))
    assert identity == "orch-lab"
    return {**inputs, **outputs}


def refreshed(made: ObjectHandler, state: Doc) -> Doc:
    outputs = made.read("orch-lab", state)
    assert outputs is not None
    return {**state, **outputs}


def test_what_is_made_is_there_and_has_no_change(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler()
    state = state_of(made, queue())
    assert server.calls == [("apply", "false")]
    assert differences(made, state, queue()) == []
    assert differences(made, refreshed(made, state), queue()) == []


def test_what_a_killed_call_made_is_taken_over(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    state_of(handler(), queue())
    state_of(handler(), queue("16"))
    assert server.calls == [("apply", "false"), ("apply", "true")]


def test_what_another_made_is_not_taken(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    server.objects[QUEUE] = queue(mark="others-000000")
    server.objects[QUEUE]["metadata"]["managedFields"] = [{"manager": "argocd"}, {"manager": "kueue"}]
    with pytest.raises(ProviderError) as told:
        handler().create(queue())
    assert (told.value.code, told.value.detail) == ("ORCH357", "its fields are managed by argocd, kueue")
    assert server.calls == []


def test_a_conflict_is_told_by_its_owner(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    server.owned_by = "argocd"
    with pytest.raises(ProviderError) as told:
        handler().create(queue())
    assert told.value.detail == "argocd has .spec.resourceGroups"


def test_what_somebody_edits_is_drift_and_put_back(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler()
    state = state_of(made, queue())
    groups = server.objects[QUEUE]["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][1]["nominalQuota"] = "3"
    seen = refreshed(made, state)
    (change,) = differences(made, seen, queue())
    assert (change.path, change.drifted, change.replaces) == ("spec", True, False)
    server.owned_by = "kubectl-edit"
    made.update("orch-lab", seen, queue())
    assert server.calls[-1] == ("apply", "true")
    assert refreshed(made, state)["observed"]["spec"] == queue()["spec"]


def test_what_others_add_is_theirs(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    made = handler()
    state = state_of(made, queue())
    server.objects[QUEUE]["spec"]["cohortName"] = "team"
    server.objects[QUEUE]["metadata"]["labels"]["theirs"] = "too"
    assert differences(made, refreshed(made, state), queue()) == []


def test_another_name_or_kind_is_another_object(handler: Callable[..., ObjectHandler]) -> None:
    made = handler()
    moved = {**queue(), "metadata": {**queue()["metadata"], "name": "orch-other"}}
    assert [each.replaces for each in differences(made, queue(), moved)] == [True]
    newer = {**queue(), "apiVersion": "kueue.x-k8s.io/v1"}
    assert [each.replaces for each in differences(made, queue(), newer)] == [True]
    more = {**queue(), "metadata": {**queue()["metadata"], "labels": {MARK: "lab-abc123", "a": "b"}}}
    assert [each.replaces for each in differences(made, queue(), more)] == [False]


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("2048Mi", "2Gi", True),
        ("64", 64, True),
        ("500m", "0.5", True),
        ("500m", "1", False),
        ("a", "b", False),
        ({"a": ["1"]}, {"a": ["1000m"], "b": 1}, True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1}, {}, False),
    ],
)
def test_quantities_are_compared_as_numbers(expected: Any, found: Any, same: bool) -> None:
    assert (shared(expected, found) == expected) is same


def test_a_cluster_that_does_not_answer_is_told_and_not_taken_for_unchanged(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler()
    state = state_of(made, queue())

    def silent(path: str) -> Doc:
        raise ClusterUnreachable("nobody answers")

    server.get = silent  # type: ignore[method-assign]
    with pytest.raises(ProviderError) as told:
        made.read("orch-lab", state)
    assert (told.value.code, told.value.summary) == ("ORCH458", "nobody answers")


class Elsewhere(Server):
    """A cluster of another identity than `here`; None: one that may not be told."""

    login = type("login", (), {"where": "lab (https://lab)"})

    def __init__(self, uid: str | None = "here") -> None:
        super().__init__()
        self.uid, self.asked = uid, 0

    def identity(self) -> str | None:
        self.asked += 1
        return self.uid


def provider_of(server: Server, identifier: str) -> KubernetesProvider:
    made = KubernetesProvider(lambda file, context: cast(KubernetesClient, server), pause_s=0.0)
    args = {"context": PropertyValue("lab"), "clusterIdentifier": PropertyValue(identifier)}
    asyncio.run(made.configure(cast(Any, SimpleNamespace(args=args))))
    return made


def ask(made: KubernetesProvider, what: str, *words: Any) -> Any:
    return getattr(made._handler("kubernetes:kueue.x-k8s.io/v1beta2:ClusterQueue"), what)(*words)


@pytest.mark.parametrize("what", ["read", "delete", "create", "update"])
def test_nothing_is_done_or_believed_on_another_cluster(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)
    server = Elsewhere("there")
    made = provider_of(server, "kube-system/here")
    words = {"create": (queue(),), "update": ("orch-lab", queue(), queue("16"))}
    for _ in range(2):
        with pytest.raises(ProviderError) as told:
            ask(made, what, *words.get(what, ("orch-lab", queue())))
        assert (told.value.code, told.value.where) == ("ORCH459", "lab (https://lab)")
        assert not isinstance(told.value, LeftBehind)
    assert (server.calls, server.asked) == ([], 1)


@pytest.mark.parametrize(
    ("identifier", "found"),
    [
        # The UID may not be read, as with most users: the address and the authority of the server tell.
        ("kube-system/server/1234", "server/5678"),
        ("kube-system/here+server/1234", "server/5678"),
        ("kube-system/here+server/1234", "there+server/1234"),
    ],
)
def test_a_user_who_may_not_read_the_uid_is_told_another_cluster_too(
    identifier: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORCED, raising=False)
    server = Elsewhere(found)
    with pytest.raises(ProviderError) as told:
        ask(provider_of(server, identifier), "delete", "orch-lab", queue())
    assert (told.value.code, server.calls) == ("ORCH459", [])


def test_with_force_what_is_on_a_cluster_that_is_gone_leaves_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORCED, "1")
    server = Elsewhere("there")
    server.objects[QUEUE] = queue()
    made = provider_of(server, "kube-system/here")
    assert ask(made, "read", "orch-lab", queue()) == {"observed": {}}
    with pytest.raises(LeftBehind):
        ask(made, "delete", "orch-lab", queue())
    with pytest.raises(ProviderError):
        ask(made, "create", queue())
    assert (server.calls, QUEUE in server.objects) == ([], True)


@pytest.mark.parametrize(
    ("identifier", "uid", "asked"),
    [
        ("kube-system/here", "here", 1),
        ("kube-system/here", "server/1234", 1),
        ("kube-system/here+server/1234", "here+server/5678", 1),
        ("kube-system/here+server/1234", "server/1234", 1),
        ("kube-system/server/1234", "there+server/1234", 1),
        # Of a stack whose provider was made by its context.
        ("lab", "there", 0),
    ],
)
def test_the_own_cluster_and_one_that_may_not_be_told_serve(identifier: str, uid: str, asked: int) -> None:
    server = Elsewhere(uid)
    made = provider_of(server, identifier)
    ask(made, "create", queue())
    ask(made, "delete", "orch-lab", queue())
    assert [name for name, _ in server.calls] == ["apply", "delete"]
    assert server.asked == asked


def test_a_cluster_that_cannot_be_asked_which_it_is_is_asked_again() -> None:
    server = Elsewhere()
    made = provider_of(server, "kube-system/here")

    def silent() -> str | None:
        raise ClusterUnreachable("nobody answers")

    server.identity = silent  # type: ignore[method-assign]
    with pytest.raises(ProviderError) as told:
        ask(made, "delete", "orch-lab", queue())
    assert told.value.code == "ORCH458"
    server.identity = lambda: "there"  # type: ignore[method-assign]
    with pytest.raises(ProviderError) as told:
        ask(made, "delete", "orch-lab", queue())
    assert told.value.code == "ORCH459"


def test_what_is_gone_or_going_is_gone(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    made = handler()
    state = state_of(made, queue())
    server.objects[QUEUE]["metadata"]["deletionTimestamp"] = "now"
    assert made.read("orch-lab", state) is None
    del server.objects[QUEUE]
    assert made.read("orch-lab", state) is None
    made.delete("orch-lab", state)
    assert ("delete", "None") not in server.calls


def test_a_deletion_waits_until_it_is_gone(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    made = handler()
    state = state_of(made, queue())
    server.lingers = 3
    made.delete("orch-lab", state)
    assert QUEUE not in server.objects
    assert server.calls[-1] == ("delete", "uid-1")


def test_what_does_not_go_is_told_with_what_holds_it(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler(gone_s=0.0)
    state = state_of(made, queue())
    server.lingers = 10
    with pytest.raises(ProviderError) as told:
        made.delete("orch-lab", state)
    assert told.value.detail == "it waits for kueue.x-k8s.io/resource-in-use"


def test_what_is_going_is_waited_for_before_it_is_made_anew(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler()
    state_of(made, queue())
    server.lingers = 2
    server.delete(QUEUE)
    state_of(made, queue("16"))
    assert server.objects[QUEUE]["metadata"]["uid"] != "uid-1"


def test_another_fleets_object_is_left(server: Server, handler: Callable[..., ObjectHandler]) -> None:
    made = handler()
    state = state_of(made, queue())
    server.objects[QUEUE] = queue(mark="others-000000")
    with pytest.raises(LeftBehind):
        made.delete("orch-lab", state)
    assert QUEUE in server.objects


def space_of(server: Server, made: ObjectHandler) -> Doc:
    server.objects[f"{SPACE}/serviceaccounts/default"] = {"metadata": {"name": "default"}}
    _, outputs = made.create(namespace())
    return {**namespace(), **outputs}


def test_a_namespace_goes_when_only_its_fleet_is_in_it(
    server: Server, handler: Callable[..., ObjectHandler]
) -> None:
    made = handler("Namespace")
    state = space_of(server, made)
    server.lists[f"{SPACE}/serviceaccounts"] = [
        {"metadata": {"name": "default"}},
        {"metadata": {"name": "orch-lab", "labels": {MARK: "lab-abc123"}}},
    ]
    server.lists[f"{SPACE}/configmaps"] = [{"metadata": {"name": "kube-root-ca.crt"}}]
    made.delete("lab", state)
    assert SPACE not in server.objects


@pytest.mark.parametrize(
    ("path", "rows", "told"),
    [
        ("persistentvolumeclaims", [{"metadata": {"name": "data"}}], "persistentvolumeclaim data"),
        ("serviceaccounts", [{"metadata": {"name": "b", "labels": {MARK: "other-1"}}}], "serviceaccount b"),
        ("secrets", Forbidden("you may not"), "secrets that you may not list"),
    ],
)
def test_a_namespace_with_more_in_it_is_left(
    server: Server, handler: Callable[..., ObjectHandler], path: str, rows: Any, told: str
) -> None:
    made = handler("Namespace")
    state = space_of(server, made)
    server.lists[f"{SPACE}/{path}"] = rows
    with pytest.raises(LeftBehind) as left:
        made.delete("lab", state)
    assert left.value.detail == told
    assert SPACE in server.objects


def test_the_official_plugin_is_found_where_the_engine_has_it(tmp_path: Path) -> None:
    environment = {"PULUMI_HOME": str(tmp_path)}
    assert official(environment) is None
    for version in ("4.33.0", "4.34.2"):
        file = tmp_path / "plugins" / f"resource-kubernetes-v{version}" / "pulumi-resource-kubernetes"
        file.parent.mkdir(parents=True)
        file.write_text("")
    found = official(environment)
    assert found is not None
    assert found.parent.name == "resource-kubernetes-v4.34.2"
