"""Clearing a GCP project of what a call that did not end made and nobody recorded.

Instances carry the labels `orch-stack` and `orch-urn`; what takes no labels has the same in its description.
What has those of a stack and is not in its state is removed, what depends on others first; `up` makes it
anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.gcp.account import errors, gather_facts
from orch.components.gcp.account.client import ProjectClient, moment
from orch.components.gcp.account.client_errors import codes_of, not_found, sdk, translate_errors
from orch.components.gcp.account.guarded import document, is_gone
from orch.components.gcp.account.labels import label
from orch.components.gcp.account.lookups import short
from orch.components.marks.orphans import RecordedResource, StackSnapshot, retry_until_gone
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.gcp import GcpSettings

# How long a removal takes at most: a large instance takes minutes.
WAIT_S = 1200.0
PAUSE_S = 3.0
QUEUED = ("CREATING", "ACCEPTED")
MEMBER = label("gcp:compute/instanceTemplate:InstanceTemplate::")
NAT, REQUEST = "gcp:compute/routerNat:RouterNat", "gcp:compute/resizeRequest:ResizeRequest"
DISK = "gcp:compute/disk:Disk"
FILESTORE, FILESTORE_API = "gcp:filestore/instance:Instance", "https://file.googleapis.com/v1"
_MARK = re.compile(r"orch:stack=(\S+) orch:urn=\S+?::(\S+)")


@dataclass(frozen=True)
class Marks:
    """What resources of the stack bear: words of a description, or their nearest as a label."""

    words: frozenset[str]

    @classmethod
    def of(cls, recorded: Iterable[RecordedResource]) -> Marks:
        matches = (_MARK.search(str(each.inputs.get("description") or "")) for each in recorded)
        return cls(frozenset(match[1] for match in matches if match))

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


def delete_orphans(snapshot: StackSnapshot) -> Iterator[str]:
    """Remove what is not recorded; what was removed, each with its path, as it goes.

    Raises CloudRefused.
    """
    places = {
        (str(each.inputs["project"]), str(each.inputs["region"]))
        for each in snapshot.recorded
        if each.type == "pulumi:providers:gcp" and "region" in each.inputs
    }
    marks = Marks(Marks.of(snapshot.of("gcp:")).words | snapshot.marks)
    disks = [each for each in snapshot.unfinished if each.type == DISK]
    if not (places or snapshot.places) or not (marks.words or disks):
        return
    session = snapshot.session("gcp") or gather_facts.open_session(entry_of(snapshot.settings, GcpSettings))
    places |= {_project_and_region(each, session.project) for each in snapshot.regions("gcp")}
    for project in sorted({project for project, _ in places}):
        yield from _filestores(session, project, snapshot, marks)
        yield from _empty_disks(session, project, disks, snapshot)
    if not marks.words:
        return
    steps = [Orphans(session, *place, snapshot, marks).steps() for place in sorted(places)]
    # Each step in all places before the next: networks are not of one region.
    for same in zip(*steps, strict=True):
        for step in same:
            snapshot.still_held()
            with translate_errors("look at what a call that did not end left"):
                batch = list(step())
            for each in batch:
                with translate_errors(f"remove what a call that did not end left: {each.path}"):
                    _remove(each)
                yield f"{each.name} ({each.path})"


def _project_and_region(place: str, project: str) -> tuple[str, str]:
    """`PROJECT/REGION` as a look tells it; any region has what is global."""
    owner, _, region = place.rpartition("/")
    return owner or project, region


def _filestores(
    session: gather_facts.Session, project: str, snapshot: StackSnapshot, marks: Marks
) -> Iterator[str]:
    """Remove Filestores whose creation is not recorded to have ended: nothing was ever written to them.

    A Filestore of a fleet that is recorded stays, for it holds data.
    """
    begun = [each for each in snapshot.unfinished if each.type == FILESTORE]
    if not begun:
        return
    http = session.http()
    for each in begun:
        path = f"projects/{project}/locations/{each.inputs['location']}/instances/{each.inputs['name']}"
        url = f"{FILESTORE_API}/{path}"
        if path in snapshot.ids:
            continue
        with translate_errors(f"remove {each.name}, which a call that did not end had begun"):
            answer = http.get(url)
            if is_gone(answer):
                continue
            raise_for(answer)
            found = document(answer)
            if found.get("labels", {}).get("orch-stack") not in marks.labels:
                continue
            if found.get("state") == "CREATING":
                snapshot.tell(
                    f"waiting until {each.name}, which was begun before, is there: then it is removed"
                )
            until(lambda url=url: document(http.get(url)).get("state") != "CREATING")
            # It was waited for many minutes: what has its name now may be another.
            if document(http.get(url)).get("createTime") != found.get("createTime"):
                continue
            snapshot.still_held()
            deleted = http.delete(url)
            if not is_gone(deleted):
                raise_for(deleted)
            until(lambda url=url: is_gone(http.get(url)))
        yield f"{each.name} ({path})"


def _empty_disks(
    session: gather_facts.Session, project: str, begun: Iterable[RecordedResource], snapshot: StackSnapshot
) -> Iterator[str]:
    """Remove disks whose creation is not recorded to have ended, so that nothing was ever written to them;
    one that an instance has stays, and so does another stack's of the same name."""
    client = session.client("DisksClient")
    for each in begun:
        place = {"project": project, "zone": str(each.inputs["zone"]), "disk": str(each.inputs["name"])}
        with translate_errors(f"remove {each.name}, which a call that did not end had begun"):
            try:
                row = client.get(**place)
            except not_found():
                continue
            own = dict(each.inputs.get("labels") or {}).get("orch-stack")
            # One that an instance ever had is another, of a state that was lost.
            used = row.users or row.last_attach_timestamp
            if path_of(row) in snapshot.ids or used or dict(row.labels).get("orch-stack") != own:
                continue
            snapshot.still_held()
            client.delete(**place).result(timeout=WAIT_S)
        yield f"{each.name} ({path_of(row)})"


def raise_for(answer: Any) -> None:
    """Raise Google's error where Filestore refused."""
    if answer.status_code >= 400:
        raise sdk("google.api_core.exceptions").from_http_response(answer)


def until(over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not over() and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


def _remove(each: Orphan) -> None:
    def try_remove() -> bool:
        try:
            each.remove().result(timeout=WAIT_S)
        except not_found():
            return True
        except sdk("google.api_core.exceptions").GoogleAPICallError as error:
            if not any(errors.by_code(code).kind == "gone" for code in codes_of(error)):
                raise
            return False
        return True

    if not retry_until_gone(try_remove):
        each.remove().result(timeout=WAIT_S)


class Orphans:
    """What one region of a project holds of a stack beyond what is recorded."""

    def __init__(
        self, session: gather_facts.Session, project: str, region: str, snapshot: StackSnapshot, marks: Marks
    ) -> None:
        self._project_client = ProjectClient(session)
        self._project, self._region = project, region
        self._snapshot, self._marks = snapshot, marks
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
            self._zones = self._project_client.zones(self._region)
        return self._zones

    def requests(self) -> Iterator[Orphan]:
        """Requests that are not recorded, and what they gave; those of a group that goes, before it."""
        client = self._project_client.client("InstanceGroupManagerResizeRequestsClient")
        for zone in self.zones():
            for group in self._groups(zone):
                group_path = {
                    "project": self._project,
                    "zone": zone,
                    "instance_group_manager": str(group.name),
                }
                rows = list(client.list(**group_path))
                recorded = [row for row in rows if self._known(row) or not self._of_call(row)]
                for row in rows:
                    if row in recorded:
                        continue
                    arguments = {**group_path, "resize_request": str(row.name)}
                    if str(row.state) in QUEUED:
                        yield Orphan(
                            str(row.name),
                            path_of(row),
                            lambda arguments=arguments: client.cancel(**arguments),
                        )
                    yield Orphan(
                        str(row.name), path_of(row), lambda arguments=arguments: client.delete(**arguments)
                    )
                if len(recorded) < len(rows) and self._known(group):
                    yield from self._members(group_path, sum(int(row.resize_by) for row in recorded))

    def _members(self, group_path: dict[str, str], kept: int) -> Iterator[Orphan]:
        """The youngest members of a group, beyond so many."""
        client = self._project_client.client("InstanceGroupManagersClient")
        group = group_path["instance_group_manager"]
        rows = [
            row
            for row in self._project_client.client("InstancesClient").list(
                project=group_path["project"], zone=group_path["zone"]
            )
            if self._bears(row) and _is_member(row) and _group(row) == group
        ]
        youngest = sorted(rows, key=lambda row: (str(row.creation_timestamp), str(row.name)))[kept:]
        if youngest:
            resource = {"instances": [str(row.self_link) for row in youngest]}
            yield Orphan(
                f"{len(youngest)} members of {group}",
                ", ".join(path_of(row) for row in youngest),
                lambda: client.delete_instances(
                    **group_path, instance_group_managers_delete_instances_request_resource=resource
                ),
            )

    def groups(self) -> Iterator[Orphan]:
        for zone in self.zones():
            yield from self._marked("InstanceGroupManagersClient", "instance_group_manager", zone=zone)

    def instances(self) -> Iterator[Orphan]:
        """Nodes and bastions. Members of a group are its own to make and remove."""
        client = self._project_client.client("InstancesClient")
        for zone in self.zones():
            for row in client.list(project=self._project, zone=zone):
                if self._bears(row) and not _is_member(row) and not self._known(row):
                    arguments = {"project": self._project, "zone": zone, "instance": str(row.name)}
                    yield Orphan(
                        str(row.name), path_of(row), lambda arguments=arguments: client.delete(**arguments)
                    )

    def routers(self) -> Iterator[Orphan]:
        """Also one that is recorded, with a NAT that is not: it is made anew with it."""
        unfinished = {str(each.inputs.get("name")) for each in self._snapshot.unfinished if each.type == NAT}
        nats = {name for name in unfinished if name}
        yield from self._marked("RoutersClient", "router", nats, region=self._region)

    def _marked(self, client: str, key: str, also: Collection[str] = (), **location: str) -> Iterator[Orphan]:
        """Resources of a kind whose description bears the stack's mark. `also`: recorded ones that go too."""
        if "" in location.values():
            return
        service = self._project_client.client(client)
        for row in service.list(project=self._project, **location):
            name = self._marks.name(row)
            if name is None or (self._known(row) and str(row.name) not in also):
                continue
            if str(row.name) in also and self._known(row) and not row.nats:
                continue
            arguments = {"project": self._project, **location, key: str(row.name)}
            yield Orphan(name, path_of(row), lambda arguments=arguments: service.delete(**arguments))

    def _groups(self, zone: str) -> list[Any]:
        rows = self._project_client.client("InstanceGroupManagersClient").list(
            project=self._project, zone=zone
        )
        return [row for row in rows if self._marks.name(row) is not None]

    def _of_call(self, row: Any) -> bool:
        """Whether the call whose leftovers are cleared made a request: its nodes may be older by hours."""
        call, created = self._snapshot.call, moment(str(row.creation_timestamp))
        return call is not None and created is not None and call.covers(created)

    def _bears(self, row: Any) -> bool:
        return dict(row.labels).get("orch-stack") in self._marks.labels

    def _known(self, row: Any) -> bool:
        return path_of(row) in self._snapshot.ids


def _is_member(row: Any) -> bool:
    return str(dict(row.labels).get("orch-urn", "")).startswith(MEMBER)


def _group(row: Any) -> str:
    """The group that made an instance, as its metadata tells."""
    return next((short(str(item.value)) for item in row.metadata.items if item.key == "created-by"), "")


def path_of(row: Any) -> str:
    """`projects/P/…`, as the provider's ids are."""
    return str(row.self_link).partition("/compute/v1/")[2]
