"""Volumes of the backend `kubernetes`: PersistentVolumeClaims, made here or registered where they are there.

Pods are made with them. Which nodes may have one, and how many at a time, is for its access modes to say.
Source: kubernetes.io, "Persistent Volumes": access modes, expanding claims, storage classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.kubernetes.cluster import cluster_account
from orch.components.kubernetes.login import kubeconfig_file
from orch.components.kubernetes.objects.orphans import delete_empty
from orch.components.kubernetes.plan import MARK, STACK, labels_of
from orch.components.marks.orphans import StackSnapshot
from orch.components.volumes import STACK as VOLUME
from orch.components.volumes import Account, MadeWithVolumes, VolumePlan, VolumeRequest, in_words, state_of
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import Forbidden
from orch.spec.findings import PlanError
from orch.spec.grammar.quantities import MIB, amount
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.models.volume import Volume
from orch.spec.suggest import few, listed
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

    from orch.runner.kubernetes.transport import Doc

MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
SHARED = {"ReadOnlyMany", "ReadWriteMany"}
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class KubernetesVolumes(MadeWithVolumes):
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "region": "region",
        "disk_type": "storage_class_name",
        "external": "claim_name",
        "sharing": "access_modes",
    }

    def plan(self, request: VolumeRequest) -> VolumePlan:
        settings = entry_of(request.account.settings, KubernetesSettings)
        rehearsed, previous = request.account.session("kubernetes"), request.previous
        file = rehearsed or kubeconfig_file(settings, request.account.root)
        path = None if file is None else str(file)
        named = request.volume.region or (previous.region if previous is not None else None)
        if rehearsed is not None:
            named = None  # its one cluster
        client = KubernetesClient.open(path, named)
        # The current context by its name: another one that is current later is another cluster.
        context = client.login.context
        login = {
            **({"kubeconfig": path} if path is not None else {}),
            **({"context": context} if context is not None else {}),
        }
        try:
            plan = _planned(request, client, login, settings.namespace)
            # The control plane of a rehearsal is created again whenever it was stopped.
            own = None if rehearsed is not None else cluster_account(client.login, path, client.identity())
            return replace(plan, account=own)
        finally:
            client.close()

    def clear(self, account: Account, volume: VolumeState, stack: str) -> Iterable[str]:
        """The namespace, where the volume made it and nothing else is in it by now."""
        settings = entry_of(account.settings, KubernetesSettings)
        mark = f"{stack}/{volume.volume_id.rpartition('-')[2]}"
        snapshot = StackSnapshot((), (), account.settings, account.session, marks=frozenset({mark}))
        file = kubeconfig_file(settings, account.root)
        return delete_empty(snapshot, file, [volume.region or ""], settings.namespace)


def _planned(
    request: VolumeRequest, client: KubernetesClient, login: Mapping[str, str], given: str | None
) -> VolumePlan:
    """Plan a claim in the namespace that is `given`, else that of the login. Raises PlanError."""
    namespace = given or client.login.namespace or "default"
    volume = request.volume
    name = volume.claim_name or volume.volume_id
    if name is not None:
        found = client.find(_path(namespace, name))
        return _plan_existing(volume, found, namespace, name, region=client.login.context)
    makes = _makes_namespace(client, namespace, _space_labels(request)[MARK])
    return plan_new(request, login, namespace, client.items(_CLASSES), makes_namespace=makes)


_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def _path(namespace: str, name: str) -> str:
    return api_path("v1", "persistentvolumeclaims", namespace, name)


def _scope(request: VolumeRequest) -> str:
    """That of the claim that there is, else this project's: each clone of a project has its own."""
    previous = request.previous
    if previous is None or previous.external or not previous.volume_id.startswith("orch-"):
        return request.scope
    return previous.volume_id.rpartition("-")[2]


def _space_labels(request: VolumeRequest) -> dict[str, str]:
    """Labels of the namespace, by the name of the stack: a fleet of the volume's name is another."""
    volume = request.volume
    return labels_of(f"{VOLUME}{volume.name}", _scope(request), {**request.tags, **volume.tags})


def _makes_namespace(client: KubernetesClient, name: str, mark: str) -> bool:
    """Whether the volume makes its namespace, or has made it. Raises PlanError (ORCH455)."""
    try:
        found = client.find(api_path("v1", "namespaces", None, name))
    except Forbidden:
        return False  # who may not look at it works in one that is there
    if found is None:
        if client.can("create", "namespaces"):
            return True
        raise PlanError(
            "ORCH455",
            f"the cluster has no namespace {name}, and you may not make one",
            path="backend",
            hint="have it made, or name one that is there: `namespace` of `kubernetes` in orch.yml",
        )
    if found["metadata"].get("deletionTimestamp"):
        raise PlanError(
            "ORCH455",
            f"the namespace {name} is being deleted",
            path="backend",
            hint="wait until it is gone, or name another one: `namespace` of `kubernetes` in orch.yml",
        )
    return (found["metadata"].get("labels") or {}).get(MARK) == mark


def plan_new(
    request: VolumeRequest,
    login: Mapping[str, str],
    namespace: str,
    classes: list[Doc],
    *,
    makes_namespace: bool = False,
) -> VolumePlan:
    """A claim of orch's own, with its namespace where the volume makes that. Pure. Raises PlanError:
    ORCH111, 225, 270."""
    volume, previous = request.volume, request.previous
    before = previous if previous is not None and not previous.external else None
    if wrong := [mode for mode in volume.access_modes if mode not in MODES]:
        raise PlanError(
            "ORCH111", f"there is no access mode {wrong[0]}", path="access_modes", hint=f"use {listed(MODES)}"
        )
    if volume.size_mib is None:
        raise PlanError("ORCH111", "a new claim needs a size", path="size", hint="write `size: 100GB`")
    chosen = _storage_class(volume, classes, before)
    if before is not None and (before.size_mib or 0) < volume.size_mib and not _grows(classes, chosen):
        raise PlanError(
            "ORCH270",
            f"claims of the storage class {chosen} do not grow",
            path="size",
            hint=f"leave {in_words(before.size_mib)}, or copy to a larger volume",
        )
    labels = labels_of(volume.name, _scope(request), {**request.tags, **volume.tags})
    name = f"orch-{labels[MARK]}"
    sharing = "native" if SHARED & {*volume.access_modes} else "single"
    state = state_of(
        volume,
        "kubernetes",
        region=login.get("context"),
        size_mib=volume.size_mib,
        disk_type=chosen,
        volume_id=name,
        sharing=sharing,
        monthly=None,
    )
    spec: dict[str, Any] = {
        "accessModes": list(volume.access_modes),
        "resources": {"requests": {"storage": f"{volume.size_mib}Mi"}},
    }
    if chosen is not None:
        spec["storageClassName"] = chosen
    claim = {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": spec}
    space = {"metadata": {"name": namespace, "labels": _space_labels(request)}} if makes_namespace else None
    reasons = (
        *([f"the namespace {namespace} is made with the volume"] if makes_namespace else []),
        f"claim {namespace}/{name}: {in_words(state.size_mib)} of the storage class {chosen}, "
        f"{listed(volume.access_modes)}",
        "pods of several nodes may have it at a time"
        if sharing == "native"
        else "one node has it at a time: `access_modes: [ReadWriteMany]` is for several",
    )
    return VolumePlan(state, reasons, partial(_register, claim, space, _scope(request), state, login))


def _storage_class(volume: Volume, classes: list[Doc], before: VolumeState | None) -> str | None:
    """The class that the file names, else that of the volume, else the cluster's own. Raises PlanError."""
    names = sorted(str(each["metadata"]["name"]) for each in classes)
    if volume.storage_class_name is not None:
        if volume.storage_class_name not in names:
            raise PlanError(
                "ORCH225",
                f"the cluster has no storage class {volume.storage_class_name}",
                path="storage_class_name",
                hint=f"it has {few(names, 10)}" if names else "it has none",
            )
        return volume.storage_class_name
    if before is not None:
        return before.disk_type
    for each in classes:
        if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true":
            return str(each["metadata"]["name"])
    raise PlanError(
        "ORCH225",
        "the cluster has no default storage class",
        path="storage_class_name",
        hint=f"name one of {few(names, 10)}" if names else "its administrator has to add one",
    )


def _grows(classes: list[Doc], name: str | None) -> bool:
    return any(
        each["metadata"]["name"] == name and bool(each.get("allowVolumeExpansion")) for each in classes
    )


def _plan_existing(
    volume: Volume, found: Doc | None, namespace: str, name: str, *, region: str | None
) -> VolumePlan:
    """A claim that is there, as it is. Raises PlanError (ORCH268)."""
    path = "claim_name" if volume.claim_name is not None else "volume_id"
    if found is None:
        raise PlanError(
            "ORCH268",
            f"the namespace {namespace} has no claim {name}",
            path=path,
            hint=f"`kubectl -n {namespace} get pvc` shows those that there are",
        )
    spec, status = found.get("spec") or {}, found.get("status") or {}
    capacity = (status.get("capacity") or (spec.get("resources") or {}).get("requests") or {}).get("storage")
    modes = {str(mode) for mode in spec.get("accessModes") or ()}
    state = state_of(
        volume,
        "kubernetes",
        external=True,
        region=region,
        volume_id=name,
        size_mib=None if capacity is None else int(amount(capacity) / MIB),
        disk_type=spec.get("storageClassName"),
        sharing="native" if SHARED & modes else "single",
        auto_cleanup_s=None,
        monthly=0.0,
    )
    reasons = (
        f"claim {namespace}/{name} exists: {in_words(state.size_mib)}, {listed(sorted(modes))}",
        "orch neither changes nor deletes it",
    )
    return VolumePlan(state, reasons, partial(_registered, name))


def _register(
    claim: dict[str, Any],
    space: dict[str, Any] | None,
    scope: str,
    state: VolumeState,
    login: Mapping[str, str],
) -> pulumi.Output[str]:
    import pulumi
    import pulumi_kubernetes as kubernetes

    provider = kubernetes.Provider(
        f"{state.name}-kubernetes",
        cluster_identifier=login.get("context") or "current",
        enable_server_side_apply=True,
        kubeconfig=login.get("kubeconfig"),
        context=login.get("context"),
    )
    # A claim may wait for its first pod: that is how many classes bind.
    metadata: Any = {**claim["metadata"], "annotations": {"pulumi.com/skipAwait": "true"}}
    options = pulumi.ResourceOptions(provider=provider, protect=state.protect)
    if space is not None:
        whose = f"{pulumi.get_project()}/{pulumi.get_stack()}/{scope}"
        own: Any = {**space["metadata"], "annotations": {STACK: whose}}
        # Nobody's deletion but ours (`clear`) looks whether anything is left in it.
        kept = pulumi.ResourceOptions(provider=provider, retain_on_delete=True)
        made_in = kubernetes.core.v1.Namespace(f"{state.name}-namespace", metadata=own, opts=kept)
        options = pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[made_in]))
    made = kubernetes.core.v1.PersistentVolumeClaim(
        state.name, metadata=metadata, spec=claim["spec"], opts=options
    )
    return made.id.apply(lambda _: str(claim["metadata"]["name"]))


def _registered(name: str) -> pulumi.Output[str]:
    import pulumi

    return pulumi.Output.from_input(name)
