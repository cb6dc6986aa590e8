"""Objects that a call which did not end made and nobody recorded, by the mark of their fleet; and namespaces
that were left as others were in them, once those are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.components.kubernetes.account.facts import MANAGED_BY, MARK
from orch.components.kubernetes.explain import PACKAGE, PROVIDER
from orch.components.kubernetes.objects.handler import PAUSE_S, PLURALS, ObjectHandler, held_in
from orch.components.kubernetes.plan import STACK
from orch.components.marks.marked import MarkedResource, Survey, project_of, survey_of
from orch.providers.orch.handler import LeftBehind
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import Forbidden
from orch.spec.errors import OrchError

if TYPE_CHECKING:
    from orch.components.marks.orphans import RecordedResource, StackSnapshot

# What others stand on comes last.
ORDER = ("LocalQueue", "ClusterQueue", "ResourceFlavor", "Topology", "RoleBinding", "Role", "ServiceAccount")


def delete_unrecorded(
    snapshot: StackSnapshot,
    file: Path | None,
    namespace: str | None = None,
    *,
    pause_s: float | None = None,
) -> Iterator[str]:
    """Delete objects that the stack asked for, that bear its mark, and that it does not record, and what
    `survey` found of its marks; what was removed, each as it goes. `file`: the kubeconfig where no provider
    of the stack tells one; `namespace`: as in `survey`.

    Raises KubernetesErrors where a cluster does not answer.
    """
    # Kinds share their names, and an id is no more than a name.
    recorded = {(each.type, each.id) for each in snapshot.recorded if each.id}
    asked = {(each.type, _identity(each.inputs)): each for each in snapshot.of(f"{PACKAGE}:") if _known(each)}
    unrecorded = [each for key, each in asked.items() if key not in recorded]
    pause = PAUSE_S if pause_s is None else pause_s
    if snapshot.marks and (contexts := snapshot.regions(PACKAGE)):
        yield from delete_empty(snapshot, file, contexts, namespace, pause_s=pause)
    if not unrecorded:
        return
    client = _client(snapshot, file)
    try:
        for each in sorted(unrecorded, key=_order):
            inputs = dict(each.inputs)
            path = _path(inputs)
            try:
                found = client.find(path)
            except Forbidden:
                continue
            mark = _labels(inputs).get(MARK)
            if found is None or mark is None or _labels(found).get(MARK) != mark:
                continue
            snapshot.still_held()
            try:
                ObjectHandler(inputs["kind"], lambda: client, pause_s=pause).delete(_identity(inputs), inputs)
            except LeftBehind:
                continue
            yield f"{inputs['kind']} {_identity(inputs)}"
    finally:
        client.close()


def survey(
    project: str,
    snapshot: StackSnapshot,
    file: Path | None,
    contexts: Sequence[str],
    namespace: str | None = None,
) -> Survey:
    """Namespaces that stacks of an orch project made and that nothing is in: those that were left with what
    is gone since. `contexts`: those of orch.yml, the current one without; `namespace`: that of orch.yml, all
    that is looked at where a user may not list them.

    Raises KubernetesErrors where no cluster answers.
    """
    found = Survey()
    for place in dict.fromkeys(contexts) or ("",):
        try:
            client = _opened(snapshot, file, place)
        except OrchError as error:
            found = replace(found, unseen=(*found.unseen, error))
            continue
        try:
            empty = [each for each in _empty(client, place, namespace) if each.id not in snapshot.ids]
            found = found.joined(survey_of(project, empty))
        except Forbidden as error:
            found = replace(found, closed=(*found.closed, error))
        except OrchError as error:
            found = replace(found, unseen=(*found.unseen, error))
        finally:
            client.close()
    return found


def _made(client: KubernetesClient, namespace: str | None) -> list[dict[str, Any]]:
    """The namespaces that orch made; where they may not be listed, the one that is known."""
    try:
        return client.items(api_path("v1", "namespaces"), labelSelector=f"{MANAGED_BY}=orch")
    except Forbidden:
        known = namespace or client.login.namespace
        if known is None:
            raise
        found = client.find(api_path("v1", "namespaces", None, known))
        return [found] if found is not None and _labels(found).get(MANAGED_BY) == "orch" else []


def _empty(client: KubernetesClient, place: str, namespace: str | None) -> Iterator[MarkedResource]:
    """Namespaces of any project that have nothing but what every one has."""
    for each in _made(client, namespace):
        meta = each["metadata"]
        name, whose = str(meta["name"]), (meta.get("annotations") or {}).get(STACK)
        if not isinstance(whose, str) or not project_of(whose) or meta.get("deletionTimestamp"):
            continue
        if next(held_in(client, name, ""), None) is None:
            made = meta.get("creationTimestamp")
            created = datetime.fromisoformat(made.replace("Z", "+00:00")) if made else None
            yield MarkedResource(PACKAGE, whose, "namespace", name, name, place, created, 0.0)


def delete_empty(
    snapshot: StackSnapshot,
    file: Path | None,
    contexts: Collection[str],
    namespace: str | None,
    *,
    pause_s: float = PAUSE_S,
) -> Iterator[str]:
    """Delete namespaces of the marks that are to be looked for, as far as nothing is in them; what was
    removed, each as it goes. Raises KubernetesErrors."""
    for place in sorted(contexts):
        client = _opened(snapshot, file, place)
        try:
            for each in list(_empty(client, place, namespace)):
                if each.mark not in snapshot.marks or each.id in snapshot.ids:
                    continue
                document = client.find(api_path("v1", "namespaces", None, each.id))
                if document is None:
                    continue
                snapshot.still_held()
                state = {"apiVersion": "v1", "kind": "Namespace", "metadata": document["metadata"]}
                try:
                    ObjectHandler("Namespace", partial(_same, client), pause_s=pause_s).delete(each.id, state)
                except LeftBehind:  # it was empty a moment ago
                    continue
                yield f"Namespace {each.id}"
        finally:
            client.close()


def _same(client: KubernetesClient) -> KubernetesClient:
    return client


def _opened(snapshot: StackSnapshot, file: Path | None, place: str) -> KubernetesClient:
    rehearsed = snapshot.session(PACKAGE)
    if rehearsed is not None:
        return KubernetesClient.open(str(rehearsed))
    return KubernetesClient.open(None if file is None else str(file), place or None)


def _client(snapshot: StackSnapshot, file: Path | None) -> KubernetesClient:
    """By what the stack's provider was configured with: where its objects are."""
    rehearsed = snapshot.session(PACKAGE)
    if rehearsed is not None:
        return KubernetesClient.open(str(rehearsed))
    told = next((each.inputs for each in snapshot.of(PROVIDER)), {})
    path, context = told.get("kubeconfig"), told.get("context")
    known = Path(str(path)) if path else None
    if known is None or not known.exists():
        known = file
    return KubernetesClient.open(None if known is None else str(known), str(context) if context else None)


def _known(each: RecordedResource) -> bool:
    """A claim is none of these: it holds data."""
    known = each.inputs.get("kind") in (*ORDER, "Namespace")
    return known and isinstance(each.inputs.get("metadata"), Mapping)


def _order(each: RecordedResource) -> int:
    kind = each.inputs["kind"]
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _identity(document: Mapping[str, Any]) -> str:
    meta = document["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def _path(document: Mapping[str, Any]) -> str:
    meta = document["metadata"]
    plural = PLURALS[document["kind"]]
    return api_path(document["apiVersion"], plural, meta.get("namespace"), meta["name"])


def _labels(document: Mapping[str, Any]) -> Mapping[str, str]:
    return document["metadata"].get("labels") or {}
