"""Objects that a call which did not end made and nobody recorded: they bear the mark of their fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.components.kubernetes.account.facts import MARK
from orch.components.kubernetes.explain import PACKAGE
from orch.components.kubernetes.plugin import PAUSE_S, PLURALS, ObjectHandler
from orch.providers.orch.handler import LeftBehind
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import Forbidden

if TYPE_CHECKING:
    from orch.components.cloud.orphans import RecordedResource, StackSnapshot

PROVIDER = f"pulumi:providers:{PACKAGE}"
# What others stand on comes last.
ORDER = ("LocalQueue", "ClusterQueue", "ResourceFlavor", "Topology", "RoleBinding", "Role", "ServiceAccount")


def delete_unrecorded(
    snapshot: StackSnapshot, file: Path | None, *, pause_s: float | None = None
) -> Iterator[str]:
    """Delete objects that the stack asked for, that bear its mark, and that it does not record; what was
    removed, each as it goes. `file`: the kubeconfig where no provider of the stack tells one.

    Raises KubernetesErrors where a cluster does not answer.
    """
    # Kinds share their names, and an id is no more than a name.
    recorded = {(each.type, each.id) for each in snapshot.recorded if each.id}
    asked = {(each.type, _identity(each.inputs)): each for each in snapshot.of(f"{PACKAGE}:") if _known(each)}
    unrecorded = [each for key, each in asked.items() if key not in recorded]
    if not unrecorded:
        return
    client = _client(snapshot, file)
    pause = PAUSE_S if pause_s is None else pause_s
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
