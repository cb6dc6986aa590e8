"""Volumes of the backend `runpod`: network volumes, each in one data center.

A pod, or an Instant Cluster, is made with at most one, and where that is. Several may have the same one at a
time. Source: runpod/docs api-reference-v2/openapi.json, NetworkVolume and `mounts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from orch.catalog.load import disk_price
from orch.catalog.runpod.prices import country
from orch.components.marks.marked import MarkedResource, cloud_name
from orch.components.runpod.account.client import VOLUME, Login, RunpodClient, open_login
from orch.components.runpod.candidates import is_center
from orch.components.runpod.explain import PACKAGE
from orch.components.volumes import STACK, MadeWithVolumes, VolumePlan, VolumeRequest, in_words, state_of
from orch.spec.findings import PlanError
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.runpod import RunpodSettings
from orch.spec.suggest import few, listed
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

TYPES = ("STANDARD", "HIGH_PERFORMANCE")
LEAST_GB, MOST_GB = 10, 4096
NETWORK_VOLUME = f"{PACKAGE}:index:NetworkVolume"

Centers = Mapping[str, tuple[str, ...]]
"""Data centers, each with the types of network volumes that it has."""


class RunpodVolumes(MadeWithVolumes):
    fixed: ClassVar[Mapping[str, str]] = {
        "backend": "backend",
        "region": "region",
        "disk_type": "disk_type",
        "external": "volume_id",
    }

    def plan(self, request: VolumeRequest) -> VolumePlan:
        settings = entry_of(request.account.settings, RunpodSettings)
        login = request.account.session("runpod") or open_login(settings)
        client = RunpodClient(login)
        try:
            if request.volume.volume_id is not None:
                return _plan_existing(request, login, client)
            centers = client.volume_types()
        finally:
            client.close()
        return plan_new(request, login, centers)


def plan_new(request: VolumeRequest, login: Login, centers: Centers) -> VolumePlan:
    """A volume of orch's own. Pure. Raises PlanError: ORCH111, 225, 270."""
    volume, previous = request.volume, request.previous
    before = previous if previous is not None and not previous.external else None
    kind = (volume.disk_type or (before.disk_type if before else None) or TYPES[0]).upper()
    if kind not in TYPES:
        summary = f"RunPod has no disk type {volume.disk_type}"
        raise PlanError("ORCH111", summary, path="disk_type", hint=f"use {listed(TYPES)}")
    size_gb = max(LEAST_GB, math.ceil((volume.size_mib or 0) / 1024))
    if size_gb > MOST_GB:
        raise PlanError(
            "ORCH270",
            f"a network volume has {MOST_GB} GB at most, {size_gb} are written",
            path="size",
            hint="RunPod's support gives larger ones: register such a one by `volume_id`",
        )
    center = _center(request, centers, kind, before)
    state = state_of(
        volume,
        "runpod",
        region=center,
        size_mib=size_gb * 1024,
        disk_type=kind,
        monthly=disk_price("runpod", kind, None, size_gb, performance=False),
    )
    price = (
        "its price is not in the catalogue"
        if state.monthly is None
        else f"list price ${state.monthly:.2f} a month"
    )
    reasons = (
        f"{kind} network volume of {in_words(state.size_mib)} in {center}",
        "pods that have it are made there, one volume each",
        price,
    )
    return VolumePlan(state, reasons, partial(_register, state, login.key, request.scope))


def _center(request: VolumeRequest, centers: Centers, kind: str, before: VolumeState | None) -> str:
    """The data center that the file names, else where the volume is, else the first of its country that has
    such volumes. Raises PlanError (ORCH225)."""
    volume = request.volume
    region, zone = str(volume.region).upper(), (volume.availability_zone or "").upper()
    path = "availability_zone" if zone else "region"

    def is_written(center: str) -> bool:
        return region in (center, country(center)) and zone in ("", center)

    if before is not None and before.disk_type == kind and before.region and is_written(before.region):
        return before.region  # whether or not there is room for another one
    able = sorted(center for center, types in centers.items() if kind in types)
    there = [center for center in able if is_written(center)]
    if not there:
        known = region in centers or any(country(center) == region for center in centers)
        written = volume.availability_zone or volume.region
        raise PlanError(
            "ORCH225",
            f"RunPod has no {kind} network volumes in {written}"
            if (zone in centers if zone else known)
            else f"RunPod has no {'data center' if zone or is_center(region) else 'region'} {written}",
            path=path,
            detail=f"`region` is {volume.region}" if zone and zone in able else None,
            hint=f"they are in {few(able, 20)}" if able else "no data center has such volumes now",
        )
    return there[0]


def _plan_existing(request: VolumeRequest, login: Login, client: RunpodClient) -> VolumePlan:
    """A network volume that is there, as it is. Raises PlanError: ORCH225, 268."""
    volume, volume_id = request.volume, str(request.volume.volume_id)
    found = client.get(VOLUME, volume_id)
    if found is None:
        raise PlanError(
            "ORCH268",
            f"the account has no network volume {volume_id}",
            path="volume_id",
            hint="ids are in RunPod's console: Storage",
        )
    center = str(found["dataCenter"])
    region, zone = str(volume.region).upper(), (volume.availability_zone or center).upper()
    if region not in (center, country(center)) or zone != center:
        raise PlanError(
            "ORCH225",
            f"the network volume {volume_id} is in {center}",
            path="region" if zone == center else "availability_zone",
            hint=f"write `region: {center}`" if zone == center else f"write `availability_zone: {center}`",
        )
    state = state_of(
        volume,
        "runpod",
        external=True,
        volume_id=volume_id,
        region=center,
        size_mib=int(found["size"]) * 1024,
        disk_type=str(found.get("type") or TYPES[0]),
        auto_cleanup_s=None,
        monthly=0.0,
    )
    reasons = (
        f"{volume_id} exists: {state.disk_type} of {found['size']} GB in {center}",
        "orch neither changes nor deletes it",
    )
    return VolumePlan(state, reasons, partial(_register_existing, state, login.key))


def of_project(client: RunpodClient, project: str) -> tuple[MarkedResource, ...]:
    """The network volumes whose names tell that they are of a project. Raises RunpodRefused."""
    rows = ((row, mark_of(str(row["name"]), project)) for row in client.all(VOLUME))
    return tuple(
        MarkedResource(
            "runpod",
            mark,
            VOLUME.words,
            str(row["id"]),
            str(row["name"]),
            str(row["dataCenter"]),
            holds_data=True,
        )
        for row, mark in rows
        if mark is not None
    )


def mark_of(name: str, project: str) -> str | None:
    """The mark that the name of a network volume bears, of whatever stack of a project; None where it is
    another's."""
    volume, scope, _ = ("", "", *name.rsplit("-", 2))[-3:]
    mark = f"{project}/{STACK}{volume}/{scope}"
    return mark if volume and cloud_name(volume, mark) == name else None


def _options(state: VolumeState, key: str) -> pulumi.ResourceOptions:
    import pulumi

    provider = pulumi.ProviderResource(PACKAGE, f"{state.name}-runpod", {"key": pulumi.Output.secret(key)})
    return pulumi.ResourceOptions(provider=provider, protect=state.protect and not state.external)


def _register(state: VolumeState, key: str, scope: str) -> pulumi.Output[str]:
    import pulumi

    from orch.components.runpod.resources import RunpodResource

    mark = f"{pulumi.get_project()}/{pulumi.get_stack()}/{scope}"
    spec = {"dataCenter": state.region, "size": (state.size_mib or 0) // 1024, "type": state.disk_type}
    props = {"name": state.name, "mark": mark, "spec": spec}
    return RunpodResource(NETWORK_VOLUME, state.name, props, _options(state, key)).id


def _register_existing(state: VolumeState, key: str) -> pulumi.Output[str]:
    import pulumi

    from orch.components.runpod.resources import RunpodResource

    options = pulumi.ResourceOptions.merge(_options(state, key), pulumi.ResourceOptions(id=state.volume_id))
    return RunpodResource(NETWORK_VOLUME, state.name, {}, options).id
