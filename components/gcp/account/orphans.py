"""Clearing a GCP project of what a call that did not end made and nobody recorded.

Instances carry the labels `orch-stack` and `orch-urn`; what takes no labels has the same in its description.
What has those of a stack and is not in its state is removed, what depends on others first; `up` makes it
anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.cloud.orphans import RecordedResource, StackSnapshot
from orch.components.cloud.removal import again
from orch.components.gcp.account import errors, gather_facts
from orch.components.gcp.account.client import ProjectClient
from orch.components.gcp.account.client_errors import codes_of, not_found, sdk, told
from orch.components.gcp.account.labels import label
from orch.components.gcp.account.lookups import short
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.gcp import GcpSettings

# How long a removal takes at most: a large instance takes minutes.
WAIT_S = 1200.0
QUEUED = ("CREATING", "ACCEPTED")
MEMBER = label("gcp:compute/instanceTemplate:InstanceTemplate::")
NAT, REQUEST = "gcp:compute/routerNat:RouterNat", "gcp:compute/resizeRequest:ResizeRequest"
_MARK = re.compile(r"orch:stack=(\S+) orch:urn=\S+?::(\S+)")


@dataclass(frozen=True)
class Marks:
    """What resources of the stack bear: words of a description, or their nearest as a label."""

    words: frozenset[str]

    @classmethod
    def of(cls, recorded: Iterable[RecordedResource]) -> Marks:
        found = (_MARK.search(str(each.inputs.get("description") or "")) for each in recorded)
        return cls(frozenset(match[1] for match in found if match))

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(map(label, self.words))

    def name(self, row: Any) -> str | None:
        """The resource's name in the stack; None for what is of another."""
        match = _MARK.search(str(row.description))
        return match[2] if match and match[1] in self.words else None


@dataclass(frozen=True)
class Orphan:
    """Something to remove; `remove` begins it and gives the operation."""

    name: str
    path: str
    remove: Callable[[], Any]


def delete_orphans(crash: StackSnapshot) -> tuple[str, ...]:
    """Remove what is not recorded; what was removed, each with its path.

    Raises CloudRefused.
    """
    places = {
        (str(each.inputs["project"]), str(each.inputs["region"]))
        for each in crash.known
        if each.type == "pulumi:providers:gcp" and "region" in each.inputs
    }
    marks = Marks.of(crash.of("gcp:"))
    if not places or not marks.words:
        return ()
    session = crash.session("gcp") or gather_facts.session(entry_of(crash.settings, GcpSettings))
    done: list[str] = []
    for project, region in sorted(places):
        there = Orphans(session, project, region, crash, marks)
        for step in there.steps():
            crash.still_held()
            with told("look at what a call that did not end left"):
                found = list(step())
            for each in found:
                with told(f"remove what a call that did not end left: {each.path}"):
                    _remove(each)
            done += [f"{each.name} ({each.path})" for each in found]
    return tuple(done)


def _remove(each: Orphan) -> None:
    def goes() -> bool:
        try:
            each.remove().result(timeout=WAIT_S)
        except not_found():
            return True
        except sdk("google.api_core.exceptions").GoogleAPICallError as error:
            if not any(errors.by_code(code).kind == "gone" for code in codes_of(error)):
                raise
            return False
        return True

    if not again(goes):
        each.remove().result(timeout=WAIT_S)


class Orphans:
    """What one region of a project holds of a stack beyond what is recorded."""

    def __init__(
        self, session: gather_facts.Session, project: str, region: str, crash: StackSnapshot, marks: Marks
    ) -> None:
        self._asked = ProjectClient(session)
        self._project, self._region = project, region
        self._crash, self._marks = crash, marks
        self._zones: Sequence[str] | None = None

    def steps(self) -> Iterator[Callable[[], Iterator[Orphan]]]:
        """What to remove, what depends on others first."""
        yield self.requests
        yield self.groups
        yield self.instances
        yield lambda: self._marked("InstanceTemplatesClient", "instance_template")
        yield lambda: self._marked("ResourcePoliciesClient", "resource_policy", region=self._region)
        yield self.routers
        yield lambda: self._marked("FirewallsClient", "firewall")
        yield lambda: self._marked("SubnetworksClient", "subnetwork", region=self._region)
        yield lambda: self._marked("NetworksClient", "network")

    def zones(self) -> Sequence[str]:
        if self._zones is None:
            self._zones = self._asked.zones(self._region)
        return self._zones

    def requests(self) -> Iterator[Orphan]:
        """Requests that are not recorded, and what they gave; those of a group that goes, before it."""
        client = self._asked.client("InstanceGroupManagerResizeRequestsClient")
        for zone in self.zones():
            for group in self._groups(zone):
                where = {
                    "project": self._project,
                    "zone": zone,
                    "instance_group_manager": str(group.name),
                }
                rows = list(client.list(**where))
                known = [row for row in rows if self._known(row)]
                for row in rows:
                    if row in known:
                        continue
                    words = {**where, "resize_request": str(row.name)}
                    if str(row.state) in QUEUED:
                        yield Orphan(str(row.name), _path(row), lambda words=words: client.cancel(**words))
                    yield Orphan(str(row.name), _path(row), lambda words=words: client.delete(**words))
                if len(known) < len(rows) and self._known(group):
                    yield from self._members(where, sum(int(row.resize_by) for row in known))

    def _members(self, where: dict[str, str], kept: int) -> Iterator[Orphan]:
        """The youngest members of a group, beyond so many."""
        client = self._asked.client("InstanceGroupManagersClient")
        group = where["instance_group_manager"]
        rows = [
            row
            for row in self._asked.client("InstancesClient").list(
                project=where["project"], zone=where["zone"]
            )
            if self._bears(row) and _is_member(row) and _group(row) == group
        ]
        young = sorted(rows, key=lambda row: (str(row.creation_timestamp), str(row.name)))[kept:]
        if young:
            resource = {"instances": [str(row.self_link) for row in young]}
            yield Orphan(
                f"{len(young)} members of {group}",
                ", ".join(_path(row) for row in young),
                lambda: client.delete_instances(
                    **where, instance_group_managers_delete_instances_request_resource=resource
                ),
            )

    def groups(self) -> Iterator[Orphan]:
        for zone in self.zones():
            yield from self._marked("InstanceGroupManagersClient", "instance_group_manager", zone=zone)

    def instances(self) -> Iterator[Orphan]:
        """Nodes and bastions. Members of a group are its own to make and remove."""
        client = self._asked.client("InstancesClient")
        for zone in self.zones():
            for row in client.list(project=self._project, zone=zone):
                if self._bears(row) and not _is_member(row) and not self._known(row):
                    words = {"project": self._project, "zone": zone, "instance": str(row.name)}
                    yield Orphan(str(row.name), _path(row), lambda words=words: client.delete(**words))

    def routers(self) -> Iterator[Orphan]:
        """Also one that is recorded, with a NAT that is not: it is made anew with it."""
        begun = {str(each.inputs.get("name")) for each in self._crash.begun if each.type == NAT}
        nats = {name for name in begun if name}
        yield from self._marked("RoutersClient", "router", nats, region=self._region)

    def _marked(self, client: str, key: str, also: Collection[str] = (), **where: str) -> Iterator[Orphan]:
        """Resources of a kind whose description bears the stack's mark. `also`: recorded ones that go too."""
        made = self._asked.client(client)
        for row in made.list(project=self._project, **where):
            name = self._marks.name(row)
            if name is None or (self._known(row) and str(row.name) not in also):
                continue
            if str(row.name) in also and self._known(row) and not row.nats:
                continue
            words = {"project": self._project, **where, key: str(row.name)}
            yield Orphan(name, _path(row), lambda words=words: made.delete(**words))

    def _groups(self, zone: str) -> list[Any]:
        rows = self._asked.client("InstanceGroupManagersClient").list(project=self._project, zone=zone)
        return [row for row in rows if self._marks.name(row) is not None]

    def _bears(self, row: Any) -> bool:
        return dict(row.labels).get("orch-stack") in self._marks.labels

    def _known(self, row: Any) -> bool:
        return _path(row) in self._crash.ids


def _is_member(row: Any) -> bool:
    return str(dict(row.labels).get("orch-urn", "")).startswith(MEMBER)


def _group(row: Any) -> str:
    """The group that made an instance, as its metadata tells."""
    return next((short(str(item.value)) for item in row.metadata.items if item.key == "created-by"), "")


def _path(row: Any) -> str:
    """`projects/P/…`, as the provider's ids are."""
    return str(row.self_link).partition("/compute/v1/")[2]
