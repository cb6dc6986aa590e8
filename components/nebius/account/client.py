"""Nebius, asked through its SDK: one call each, with errors of ours.

Operations are asked for here: the SDK's own wait hung in some versions.
Source: nebius/pysdk README and issue 74; dstack core/backends/nebius.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from orch.components.cloud.quotas import if_readable
from orch.components.cloud_errors import Category
from orch.components.nebius.account.calls import Calls
from orch.components.nebius.account.errors import NebiusRefused, refusal_of, translated
from orch.components.nebius.account.facts import (
    CPU_IMAGE_FAMILY,
    Allowance,
    Image,
    Lookups,
    NebiusFacts,
    Stock,
    Subnet,
)
from orch.components.nebius.account.methods import (
    IMAGE,
    INSTANCE,
    NETWORK,
    QUOTA,
    SECURITY_GROUP,
    SUBNET,
    Kind,
    Method,
    Row,
)

WAITS = ("conflict", "transient", "rate")
"""What may be otherwise a little later: something in use, or an answer that did not come."""

MOST_BATCH = 1000


@dataclass(frozen=True)
class Begun:
    """A change that has begun. `resource`: the id, known at once; `operation`: to ask for."""

    kind: Kind
    resource: str
    operation: str


class NebiusClient(Calls):
    """The account of a session. `try_s`: how long one try of a call may take; `first_s`: see FIRST_S."""

    # -- calls --------------------------------------------------------------------------------------------

    # -- where --------------------------------------------------------------------------------------------

    def projects(self) -> dict[str, str]:
        """Region -> the project to use there: one that orch.yml names, the only one, else the default one.

        Raises NebiusRefused.
        """
        return {region: str(row["id"]) for region, row in self._chosen().items()}

    def identity(self) -> str:
        """Return the id of the tenant whose projects are used; of several, all of them.

        A project of a further region leaves it as it is. Raises NebiusRefused, also without a project.
        """
        found = sorted({str(row["parent_id"]) for row in self._chosen().values()})
        if not found:
            named = f" named {', '.join(self._session.projects)}" if self._session.projects else ""
            message = f"these credentials see no project{named}"
            raise NebiusRefused("ask which tenant this is", "permission", message)
        return "+".join(found)

    def require_project(self, project: str) -> None:
        """Raise NebiusRefused if these credentials do not see a project: to them, nothing of it is there."""
        what = f"tell what is gone of the project {project}"
        if not self._seen:
            self._seen = frozenset(str(row["metadata"]["id"]) for row in self._all_projects())
        if project not in self._seen:
            raise NebiusRefused(what, "permission", "these credentials do not see it")

    def _all_projects(self) -> Iterator[Row]:
        for tenant in self._items("list the tenants", "iam.v2", "TenantService", {}):
            where = {"parent_id": tenant["metadata"]["id"]}
            for project in self._items("list the projects", "iam.v2", "ProjectService", where):
                project["metadata"].setdefault("parent_id", tenant["metadata"]["id"])
                yield project

    def _chosen(self) -> dict[str, Row]:
        rows: dict[str, list[Row]] = {}
        for project in self._all_projects():
            rows.setdefault(project["spec"]["region"], []).append(project["metadata"])
        chosen: dict[str, Row] = {}
        for region, known in rows.items():
            listed = [each for each in known if {each["id"], each.get("name")} & set(self._session.projects)]
            usable = listed if self._session.projects else known
            default = [each for each in usable if str(each.get("name", "")).startswith("default-project")]
            picked = usable if len(usable) == 1 else default
            if picked:
                chosen[region] = picked[0]
        return chosen

    def tenant(self) -> str:
        """The first tenant that these credentials see."""
        rows = self._items("list the tenants", "iam.v2", "TenantService", {})
        return str(next(rows)["metadata"]["id"])

    def stock(self, tenant: str) -> Stock:
        """How many machines may be had now, as far as the quota lets them."""
        found: dict[tuple[str, str, str], tuple[int | None, int | None]] = {}
        rows = self._items("ask for the stock", "capacity.v1", "ResourceAdviceService", {"parent_id": tenant})
        for row in rows:
            spec, status = row["spec"], row["status"]
            machine = spec["compute_instance"]
            name = f"{machine['platform']}_{machine['preset']['name']}"
            key = (name, spec.get("region", ""), spec.get("fabric", ""))
            found[key] = (_available(status.get("on_demand")), _available(status.get("preemptible")))
        return found

    def image(self, family: str, region: str) -> Row:
        """The newest public image of a family. Raises NebiusRefused."""
        body = {"image_family": family, "parent_id": f"project-{region}public-images"}
        latest = Method("compute.v1", "ImageService", "get_latest_by_family")
        return self.call(f"look for the image {family}", latest, body)

    def facts(self, project: str, lookups: Lookups) -> NebiusFacts:
        """What a plan in the region of a project has to know. Raises NebiusRefused."""
        missing, unread = list[str](), list[str]()
        asked = lookups.quota or (lookups.bastion and lookups.bastion_type is None)
        platforms = list(self._platforms(project)) if asked else []
        bastion_image = None
        if lookups.bastion:
            bastion_image = self._image(lookups.bastion_image, CPU_IMAGE_FAMILY, lookups.region)
        return NebiusFacts(
            project=project,
            image=self._image(lookups.image, lookups.family, lookups.region),
            subnets=self._subnets(project, lookups, missing),
            groups=tuple(self._given(SECURITY_GROUP, project, lookups.groups, missing)),
            missing=tuple(missing),
            quota=if_readable(unread, lambda: self._quota(platforms, lookups)) if lookups.quota else None,
            bastion_type=(lookups.bastion_type or _smallest(platforms)) if lookups.bastion else None,
            bastion_image=bastion_image,
            unread=tuple(unread),
        )

    def _platforms(self, project: str) -> Iterator[Row]:
        return self._items("list the platforms", "compute.v1", "PlatformService", {"parent_id": project})

    def _image(self, pinned: str | None, family: str, region: str) -> Image | None:
        try:
            row = self.get(IMAGE, pinned) if pinned is not None else self.image(family, region)
        except NebiusRefused as refused:
            if refused.category != "gone":
                raise
            row = None
        if row is None:
            return None
        least = int((row.get("status") or {}).get("min_disk_size_bytes") or 0)
        return Image(row["metadata"]["id"], row["metadata"].get("name", ""), -(-least // 2**30))

    def _given(self, kind: Kind, project: str, names: Sequence[str], missing: list[str]) -> Iterator[str]:
        """The ids of given pieces, which the file names by id or name."""
        for name in names:
            row = self.find(kind, project, name) or self.get(kind, name)
            if row is None:
                missing.append(name)
            else:
                yield str(row["metadata"]["id"])

    def _subnets(self, project: str, lookups: Lookups, missing: list[str]) -> tuple[Subnet, ...]:
        rows: list[Row] = []
        if lookups.subnets:
            for each in self._given(SUBNET, project, lookups.subnets, missing):
                rows.append(self.get(SUBNET, each) or {})
        elif lookups.network is not None:
            for network in self._given(NETWORK, project, (lookups.network,), missing):
                by_network = {"network_id": network}
                rows += self._items(
                    "list the subnets", "vpc.v1", "SubnetService", by_network, "list_by_network"
                )
        return tuple(
            Subnet(row["metadata"]["id"], row["metadata"].get("name", ""), row["spec"]["network_id"])
            for row in rows
        )

    def _quota(self, platforms: Sequence[Row], lookups: Lookups) -> Allowance | None:
        """The quota of the type's GPUs in the region; None where it has none. Raises NebiusRefused."""
        platform = lookups.instance_type.rpartition("_")[0]
        names = [
            row["spec"].get("gpu_count_quota_type")
            for row in platforms
            if row["metadata"]["name"] == platform
        ]
        if not names or not names[0]:
            return None
        body = {"parent_id": self.tenant(), "name": names[0], "region": lookups.region}
        try:
            row = self.call(f"ask for the quota {names[0]}", QUOTA.method("get_by_name"), body)
        except NebiusRefused as refused:
            if refused.category == "gone":
                return None
            raise
        return Allowance(names[0], int(row["spec"].get("limit", 0)), int(row["status"].get("usage", 0)))

    # -- resources ----------------------------------------------------------------------------------------

    def list(self, kind: Kind, parent: str) -> Iterator[Row]:
        """All of a kind in a project; of rules, in their group. Raises NebiusRefused."""
        return self._items(f"list each {kind.words}", kind.package, kind.service, {"parent_id": parent})

    def find(self, kind: Kind, parent: str, name: str) -> Row | None:
        """A resource by its name, None without. Raises NebiusRefused."""
        body = {"parent_id": parent, "name": name}
        return self._or_none(kind, "get_by_name", body, name)

    def get(self, kind: Kind, resource: str) -> Row | None:
        """A resource by its id, None when it is gone. Raises NebiusRefused."""
        return self._or_none(kind, "get", {"id": resource}, resource)

    def _or_none(self, kind: Kind, method: str, body: Mapping[str, Any], name: str) -> Row | None:
        try:
            return self.call(f"ask for the {kind.words} {name}", kind.method(method), body)
        except NebiusRefused as refused:
            if refused.category == "gone":
                return None
            raise

    def instances(self, ids: Sequence[str]) -> dict[str, Row]:
        """Instances by id, in few calls; those that are gone are left out."""
        found: dict[str, Row] = {}
        for start in range(0, len(ids), MOST_BATCH):
            body = {"instance_ids": list(ids[start : start + MOST_BATCH])}
            rows = self.call("ask for the instances", INSTANCE.method("batch_get"), body).get("items", {})
            found |= {key: row["instance"] for key, row in rows.items() if "instance" in row}
        return found

    def ended(self, ids: Sequence[str]) -> frozenset[str]:
        """Those of these instances that ended themselves, or that Nebius took back: they are stopped, nobody
        asked for that (`stopped`), and they are not started again (FAIL).

        Source: nebius/api compute/v1/instance.proto, recovery_policy. Raises NebiusRefused.
        """
        return frozenset(
            each
            for each, row in self.instances(ids).items()
            if is_down(row["status"])
            and row["spec"].get("recovery_policy") == "FAIL"
            and not row["spec"].get("stopped")
        )

    def create(self, kind: Kind, metadata: Mapping[str, Any], spec: Mapping[str, Any], key: str) -> Begun:
        """Begin to make a resource: one call. `key`: the same for the same resource, whichever process asks.

        Raises NebiusRefused.
        """
        what = f"create the {kind.words} {metadata['name']}"
        answer = self.call(what, kind.method("create"), {"metadata": metadata, "spec": spec}, key)
        return Begun(kind, str(answer["resource_id"]), str(answer["id"]))

    def update(self, kind: Kind, metadata: Mapping[str, Any], spec: Mapping[str, Any], key: str) -> Begun:
        what = f"change the {kind.words} {metadata['name']}"
        answer = self.call(what, kind.method("update"), {"metadata": metadata, "spec": spec}, key)
        return Begun(kind, str(answer["resource_id"]), str(answer["id"]))

    def delete(self, kind: Kind, resource: str, key: str) -> Begun | None:
        """Begin to delete a resource; None when it is gone. Raises NebiusRefused."""
        what = f"delete the {kind.words} {resource}"
        try:
            answer = self.call(what, kind.method("delete"), {"id": resource}, key)
        except NebiusRefused as refused:
            if refused.category == "gone":
                return None
            raise
        return Begun(kind, resource, str(answer["id"]))

    def remove(self, kind: Kind, resource: str, *, for_s: float, pause_s: float) -> None:
        """Delete a resource, as soon as nothing uses it any more, and wait until it is gone: what it stands
        on is deleted next.

        Raises NebiusRefused, also where it is still there after `for_s` seconds.
        """
        key, end = str(uuid.uuid4()), time.monotonic() + for_s
        while self.get(kind, resource) is not None:
            try:
                self.delete(kind, resource, key)
            except NebiusRefused as refused:
                if refused.category not in WAITS or time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise NebiusRefused(f"delete the {kind.words} {resource}", "conflict", "it is still there")
            if self.get(kind, resource) is not None:
                time.sleep(pause_s)

    def failure(self, kind: Kind, resource: str) -> tuple[Category, str]:
        """Why the last operation on a resource that failed did: capacity where none says another reason, for
        a machine that stops again is how missing capacity looks.

        Raises NebiusRefused.
        """
        service = self._client(kind.package, kind.service).operation_service()
        request = import_module("nebius.api.nebius.common.v1").ListOperationsRequest(resource_id=resource)
        what = f"ask why the {kind.words} {resource} does not run"
        answer = translated(what, lambda: service.list(request, **self._options()).wait())
        for operation in answer.operations:
            status = operation.status
            if status is not None and status.code.name != "OK":
                refused = refusal_of(what, status)
                return refused.category, refused.detail or ""
        return "capacity", "it stopped, and no operation says why"

    def wait(self, begun: Begun, *, for_s: float, pause_s: float = 1.0) -> None:
        """Wait until a change has ended. Raises NebiusRefused, also when it failed or takes too long."""
        service = self._client(begun.kind.package, begun.kind.service).operation_service()
        request = import_module("nebius.api.nebius.common.v1").GetOperationRequest(id=begun.operation)
        what = f"change the {begun.kind.words} {begun.resource}"
        end = time.monotonic() + for_s
        while True:
            operation = translated(what, lambda: service.get(request, **self._options()).wait())
            status = operation.status()
            if status is not None:
                if status.code.name != "OK":
                    raise refusal_of(what, status)
                return
            if time.monotonic() >= end:
                raise NebiusRefused(what, "transient", f"it has not ended after {for_s:.0f} s")
            time.sleep(pause_s)


def is_down(status: Mapping[str, Any]) -> bool:
    """Whether a machine with this status has stopped, or is about to, and is not coming up again."""
    return status.get("state") in ("STOPPED", "STOPPING", "ERROR") and not status.get("reconciling")


def _available(row: Mapping[str, Any] | None) -> int | None:
    """How many there are; None where that is not known, or stale."""
    if row is None or row.get("data_state") != "DATA_STATE_FRESH":
        return None
    return int(row.get("available", 0))


def _smallest(platforms: Sequence[Row]) -> str | None:
    """The smallest type without GPUs: `cpu-e2_2vcpu-8gb`."""
    sizes = [
        (
            int(preset["resources"].get("vcpu_count", 0)),
            int(preset["resources"].get("memory_gibibytes", 0)),
            f"{row['metadata']['name']}_{preset['name']}",
        )
        for row in platforms
        for preset in row["spec"].get("presets", ())
        if not int(preset["resources"].get("gpu_count", 0))
    ]
    return min(sizes)[2] if sizes else None
