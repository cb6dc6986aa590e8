"""Handles one object of Kubernetes per resource, by server-side apply as the manager `orch`.

What an object has beside the fields that a fleet gives it is others' (quotas that an administrator adds, what
controllers write), and no drift."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from orch.components.kubernetes.account.facts import MARK
from orch.providers.orch.handler import OBSERVED, Inputs, LeftBehind, ProviderError, State
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import (
    ClusterUnreachable,
    Forbidden,
    KubernetesError,
    ManagedByOthers,
    NotFound,
)
from orch.spec.grammar.quantities import quantity

PLURALS: Mapping[str, str] = {
    "Namespace": "namespaces",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Topology": "topologies",
    "ResourceFlavor": "resourceflavors",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}
IMMUTABLE = ("apiVersion", "kind")
# What the official plugin writes beside the object's own fields, and what controllers do.
BESIDE = frozenset({"status", "__fieldManager", "__initialApiVersion", "__inputs", "id"})

GONE_S = 300.0
"""Limit in seconds on a deletion: a queue stays until its workloads are gone."""
READY_S = 60.0
"""Limit in seconds until a new namespace accepts objects."""
PAUSE_S = 0.5

# Objects that every namespace has. Source: Kubernetes, "Service Accounts", "Root CA certificate".
_EVERYWHERE = {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}
# What a namespace is looked through for before it goes with all that is in it.
_HELD = (
    ("v1", "pods"),
    ("v1", "persistentvolumeclaims"),
    ("v1", "services"),
    ("v1", "secrets"),
    ("v1", "configmaps"),
    ("v1", "serviceaccounts"),
    ("batch/v1", "jobs"),
    ("apps/v1", "deployments"),
    ("apps/v1", "statefulsets"),
)


class ObjectHandler:
    """Objects of one kind. Inputs: the document. The id is `NAME`, or `NAMESPACE/NAME`."""

    computed: ClassVar[frozenset[str]] = BESIDE
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        kind: str,
        client: Callable[[], KubernetesClient],
        *,
        pause_s: float = PAUSE_S,
        gone_s: float = GONE_S,
    ) -> None:
        self._kind, self._client, self._pause_s, self._gone_s = kind, client, pause_s, gone_s

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        failures = [(key, "must be set") for key in ("apiVersion", "kind", "metadata") if not inputs.get(key)]
        if not failures and isinstance(inputs["metadata"], Mapping) and not inputs["metadata"].get("name"):
            failures.append(("metadata.name", "must be set"))
        return failures

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        if key in IMMUTABLE:
            return True
        if key != "metadata" or not isinstance(old, Mapping) or not isinstance(new, Mapping):
            return False
        before, after = cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", new)
        return any(before.get(each) != after.get(each) for each in ("name", "namespace"))

    def create(self, inputs: Inputs) -> tuple[str, State]:
        """Made, or taken over where it bears this fleet's mark, as what a killed call left."""
        path = self._path(inputs)
        found = self._client().find(path)
        if found is not None and found["metadata"].get("deletionTimestamp"):
            self._until_gone(path, found)
            found = None
        if found is not None and _mark(found) != _mark(inputs):
            raise ProviderError(
                f"there is a {self._kind} {inputs['metadata']['name']} that this fleet did not make",
                where=path,
                detail=f"its fields are managed by {', '.join(_managers(found)) or 'nobody'}",
                hint="delete it, or name the fleet otherwise",
                code="ORCH357",
            )
        self._apply(path, inputs, force=found is not None)
        if self._kind == "Namespace":
            self._until_usable(inputs["metadata"]["name"])
        return self._id(inputs), _settled()

    def read(self, resource_id: str, state: State) -> State | None:
        """Raises ProviderError where the cluster does not tell: it may be as recorded, or not."""
        try:
            found = self._client().get(self._path(state))
        except NotFound:
            return None
        except LeftBehind:
            return {OBSERVED: {}}
        except KubernetesError as error:
            raise unread(error) from error
        if found["metadata"].get("deletionTimestamp"):
            return None
        keys = [key for key in state if key not in BESIDE and key not in (OBSERVED, *IMMUTABLE)]
        return {OBSERVED: {key: shared(state[key], found.get(key)) for key in keys}}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        """Bring it to its fields; those that somebody else has given another value since are taken back: the
        object is the fleet's own."""
        path = self._path(inputs)
        found = self._client().find(path)
        ours = found is None or _mark(found) in (None, _mark(inputs))
        self._apply(path, inputs, force=ours)
        return _settled()

    def delete(self, resource_id: str, state: State) -> None:
        path = self._path(state)
        found = self._client().find(path)
        if found is None:
            return
        if _mark(found) not in (None, _mark(state)):
            summary = f"the {self._kind} {resource_id} is another fleet's by now"
            raise LeftBehind(f"{summary}: it is left", where=path)
        if self._kind == "Namespace" and (
            held := list(held_in(self._client(), state["metadata"]["name"], _mark(state) or ""))
        ):
            some = ", ".join(held[:5]) + (" …" if len(held) > 5 else "")
            raise LeftBehind(
                f"the namespace {resource_id} is left: there is more in it than what goes with it",
                detail=some,
                hint=f"`kubectl delete namespace {resource_id}` removes it with all of that; `orch gc` finds "
                "it once it is empty",
            )
        # They own nothing, and the collector which ends deletions in the foreground hears late of new kinds.
        self._client().delete(path, propagation="Background", uid=found["metadata"].get("uid"))
        self._until_gone(path, found)

    # One object

    def _path(self, document: Mapping[str, Any]) -> str:
        meta = document["metadata"]
        return api_path(document["apiVersion"], PLURALS[self._kind], meta.get("namespace"), meta["name"])

    def _id(self, document: Mapping[str, Any]) -> str:
        meta = document["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])

    def _apply(self, path: str, inputs: Inputs, *, force: bool) -> None:
        document = {key: value for key, value in inputs.items() if key not in BESIDE}
        try:
            self._client().apply(path, document, force=str(force).lower())
        except ManagedByOthers as error:
            owners = "; ".join(f"{who} has {', '.join(fields)}" for who, fields in error.managers)
            raise ProviderError(
                error.summary, where=path, detail=owners, hint=error.hint, code="ORCH357"
            ) from error

    def _until_gone(self, path: str, found: Mapping[str, Any]) -> None:
        end, uid = time.monotonic() + self._gone_s, found["metadata"].get("uid")
        while True:
            there = self._client().find(path)
            if there is None or there["metadata"].get("uid") != uid:
                return
            if time.monotonic() >= end:
                holders = there["metadata"].get("finalizers") or (there.get("spec") or {}).get("finalizers")
                raise ProviderError(
                    f"the {self._kind} {there['metadata']['name']} is not gone after {self._gone_s:.0f} s",
                    where=path,
                    detail=f"it waits for {', '.join(map(str, holders or ['nothing it tells']))}",
                    hint="runs that are still on it keep it (`orch ps`); then run the command again",
                    code="ORCH359",
                )
            time.sleep(self._pause_s)

    def _until_usable(self, namespace: str) -> None:
        """Pods need the account that a controller makes in a new namespace."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            try:
                if self._client().find(api_path("v1", "serviceaccounts", namespace, "default")) is not None:
                    return
            except Forbidden:
                return
            time.sleep(self._pause_s)


def held_in(client: KubernetesClient, namespace: str, mark: str) -> Iterator[str]:
    """What is in a namespace beside what every one has and what bears the mark. Claims count whatever they
    bear, for they hold data; so does what may not be read: it would go unseen."""
    for version, plural in _HELD:
        try:
            rows = client.items(api_path(version, plural, namespace))
        except Forbidden:
            yield f"{plural} that you may not list"
            continue
        for each in rows:
            name = str(each["metadata"]["name"])
            own = _mark(each) == mark and plural != "persistentvolumeclaims"
            if (plural, name) not in _EVERYWHERE and not own:
                yield f"{plural.removesuffix('s')} {name}"


def shared(expected: Any, found: Any) -> Any:
    """What an object has of the fields that it was given: as expected where it says the same."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        given, there = cast("Mapping[str, Any]", expected), cast("Mapping[str, Any]", found)
        return {key: shared(value, there[key]) for key, value in given.items() if key in there}
    if isinstance(expected, list) and isinstance(found, list):
        rows, others = cast("list[Any]", expected), cast("list[Any]", found)
        if len(rows) == len(others):
            return [shared(one, other) for one, other in zip(rows, others, strict=True)]
        return others
    if isinstance(expected, str) and expected != found and isinstance(found, (str, int, float)):
        return expected if _same_quantity(expected, found) else found
    return found


def _same_quantity(one: str, other: object) -> bool:
    try:
        return quantity(one) == quantity(other)
    except ValueError:
        return False


def unread(error: KubernetesError) -> ProviderError:
    """Return the error of a failed read: ORCH458 if no server answers."""
    code = "ORCH458" if isinstance(error, ClusterUnreachable) else error.code
    return ProviderError(error.summary, where=error.where, detail=error.detail, hint=error.hint, code=code)


def _settled() -> State:
    return {OBSERVED: {}, "__fieldManager": "orch"}


def _mark(document: Mapping[str, Any]) -> str | None:
    return (document["metadata"].get("labels") or {}).get(MARK)


def _managers(document: Mapping[str, Any]) -> Sequence[str]:
    rows = document["metadata"].get("managedFields") or ()
    return sorted({str(each.get("manager")) for each in rows})
