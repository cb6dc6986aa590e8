"""Crusoe, asked by HTTP: each call is signed. Changes are operations, asked for until they have ended.

Source: crusoecloud/client-go swagger/v1/swagger.json @e23c062.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from orch.components.cloud.rest.client import RestClient, Row
from orch.components.cloud_errors import WAITS, Category, CategoryRefused, CloudRefused
from orch.components.crusoe.account.errors import HINTS, CrusoeRefused, category, plain
from orch.components.crusoe.account.facts import CrusoeFacts, IbNetwork, Image, Lookups, Quota, Stock, Subnet
from orch.components.crusoe.account.signing import headers

if TYPE_CHECKING:
    from orch.spec.models.backends.crusoe import CrusoeSettings

API = "https://api.cloud.crusoe.ai/v1"
KEY, SECRET = "CRUSOE_ACCESS_KEY_ID", "CRUSOE_SECRET_KEY"
PROJECT, ENDPOINT = "CRUSOE_DEFAULT_PROJECT", "CRUSOE_API_ENDPOINT"
PARTS = ("access_key", "secret_key", "project", "url")
"""What a login consists of, as the provider is configured with it."""

PAGE = 100


@dataclass(frozen=True)
class Login:
    """An access key and a project; `url`: where the API is, with its version."""

    access_key: str
    secret_key: str = field(repr=False)
    project: str
    url: str = API

    @property
    def key(self) -> dict[str, str]:
        return {part: str(getattr(self, part)) for part in PARTS}


def open_login(settings: CrusoeSettings) -> Login:
    """With the key of orch.yml, else of the environment. Raises CloudRefused where something is missing."""
    creds, known = settings.creds, os.environ
    key = creds.access_key if creds is not None else known.get(KEY)
    secret = creds.secret_key if creds is not None else known.get(SECRET)
    if not key or not secret:
        missing = " and ".join(name for name, value in ((KEY, key), (SECRET, secret)) if not value)
        raise CloudRefused(
            "there are no credentials of Crusoe",
            detail=f"{missing} not set",
            hint=HINTS["credentials"],
            code="ORCH303",
        )
    project = settings.project_id or known.get(PROJECT)
    if not project:
        raise CloudRefused(
            "no project of Crusoe is named",
            detail=f"{PROJECT} is not set",
            hint=f"set `project_id` of `crusoe` in orch.yml, or {PROJECT}",
            code="ORCH303",
        )
    return Login(key, secret, project, known.get(ENDPOINT) or API)


@dataclass(frozen=True)
class Kind:
    """A kind of resource. `path` is the API's, in a project; `words`: as people call it; `at_once`: it is
    made without an operation."""

    path: str
    words: str
    at_once: bool = False


NETWORK = Kind("networking/vpc-networks", "VPC network")
SUBNET = Kind("networking/vpc-subnets", "VPC subnet")
RULE = Kind("networking/vpc-firewall-rules", "firewall rule")
PARTITION = Kind("networking/ib-partitions", "InfiniBand partition", at_once=True)
DISK = Kind("storage/disks", "disk")
INSTANCE = Kind("compute/vms/instances", "VM")


class CrusoeClient(RestClient):
    """The project of a login. Raises CloudRefused where httpx is not installed."""

    title: ClassVar[str] = "Crusoe"
    extra: ClassVar[str] = "crusoe"
    refused: ClassVar[type[CategoryRefused]] = CrusoeRefused

    def __init__(self, login: Login, *, pause_s: float = 1.0) -> None:
        super().__init__(login.url, pause_s=pause_s)
        self._login = login
        self._base = urlsplit(login.url).path.rstrip("/")

    @property
    def project(self) -> str:
        return self._login.project

    # -- calls --------------------------------------------------------------------------------------------

    def signed(self, what: str, method: str, path: str, query: str) -> Mapping[str, str]:
        login = self._login
        try:
            return headers(login.access_key, login.secret_key, method, f"{self._base}{path}", query)
        except ValueError as error:
            raise CrusoeRefused(what, "credentials", f"the secret key does not read: {error}") from error

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        return category(status, detail)

    def detail(self, problem: Mapping[str, Any]) -> str:
        message = plain(str(problem.get("message") or ""))
        return f"{message} ({problem['reason']})" if problem.get("reason") else message

    def _in_project(self, path: str) -> str:
        return f"/projects/{self._login.project}/{path}"

    # -- resources ----------------------------------------------------------------------------------------

    def all(self, kind: Kind, query: Mapping[str, str] | None = None) -> Iterator[Row]:
        """All of a kind that are not about to go. Raises CrusoeRefused."""
        paged = {"limit": str(PAGE), **(query or {})} if kind is INSTANCE else dict(query or {})
        while True:
            answer = self.read(f"list each {kind.words}", self._in_project(kind.path), paged)
            yield from (row for row in answer["items"] if not _goes(row))
            token = answer.get("next_token")
            if not token:
                return
            paged["next_token"] = str(token)

    def named(self, kind: Kind, name: str) -> list[Row]:
        """All of a kind by a name, the oldest first: that names are unique is not documented. Raises
        CrusoeRefused."""
        query = {"names": name} if kind is INSTANCE else None
        found = [row for row in self.all(kind, query) if row["name"] == name]
        return sorted(found, key=lambda row: (str(row.get("created_at", "")), str(row["id"])))

    def get(self, kind: Kind, resource: str) -> Row | None:
        """A resource by its id, None when it is gone. Raises CrusoeRefused."""
        path = self._in_project(f"{kind.path}/{resource}")
        try:
            found = self.read(f"ask for the {kind.words} {resource}", path)
        except CrusoeRefused as refused:
            if refused.category == "gone":
                return None
            raise
        return None if _goes(found) else found

    def create(self, kind: Kind, body: Mapping[str, Any]) -> tuple[str, str]:
        """Begin to make a resource, by one call: its id, and the operation to ask for, empty where it is
        done. Raises CrusoeRefused."""
        what = f"create the {kind.words} {body['name']}"
        answer = self.call(what, "POST", self._in_project(kind.path), body=body)
        if kind.at_once:
            return str(answer["id"]), ""
        operation = answer["operation"]
        if operation["state"] == "FAILED":
            raise _failed(what, operation)
        return str(operation["metadata"]["id"]), str(operation["operation_id"])

    def operation(self, kind: Kind, operation: str, what: str) -> bool:
        """Whether an operation has ended; what is not known any more has. Raises CrusoeRefused where it
        failed. An unknown one is a 403, source: swagger.json."""
        try:
            path = self._in_project(f"{kind.path}/operations/{operation}")
            answer = self.read(f"ask how far the {kind.words} is", path)
        except CrusoeRefused as refused:
            if refused.category in ("permission", "gone"):
                return True
            raise
        row = answer.get("operation", answer)
        if row["state"] == "FAILED":
            raise _failed(what, row)
        return row["state"] == "SUCCEEDED"

    def settle(self, kind: Kind, operation: str, what: str, *, for_s: float) -> None:
        """Wait until an operation has ended. Raises CrusoeRefused, also where it takes too long."""
        end = time.monotonic() + for_s
        while operation and not self.operation(kind, operation, what):
            if time.monotonic() >= end:
                raise CrusoeRefused(what, "transient", f"it has not ended after {for_s:.0f} s")
            time.sleep(self._pause_s)

    def delete(self, kind: Kind, resource: str) -> None:
        """Begin to delete a resource; what is gone is no error. Raises CrusoeRefused."""
        try:
            path = self._in_project(f"{kind.path}/{resource}")
            self.call(f"delete the {kind.words} {resource}", "DELETE", path)
        except CrusoeRefused as refused:
            if refused.category != "gone":
                raise

    def remove(self, kind: Kind, resource: str, *, for_s: float) -> None:
        """Delete a resource, as soon as nothing uses it any more, and wait until it is gone: what it stands
        on is deleted next.

        Raises CrusoeRefused, also where it is still there after `for_s` seconds.
        """
        end, path = time.monotonic() + for_s, self._in_project(f"{kind.path}/{resource}")
        what = f"ask for the {kind.words} {resource}"
        while True:
            try:
                if not _goes(self.read(what, path)):
                    self.delete(kind, resource)
            except CrusoeRefused as refused:
                if refused.category == "gone":
                    return
                if refused.category not in WAITS or time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise CrusoeRefused(f"delete the {kind.words} {resource}", "conflict", "it is still there")
            time.sleep(self._pause_s)

    # -- what a plan has to know ---------------------------------------------------------------------------

    def stock(self) -> Stock:
        """(type, location) -> what there is in Crusoe's own count. Raises CrusoeRefused."""
        rows = self.read("ask for the stock", "/capacities")["items"]
        found: dict[tuple[str, str], int] = {}
        for row in rows:
            key = str(row["type"]), str(row["location"])
            found[key] = max(found.get(key, 0), int(row["quantity"]))
        return found

    def ib_networks(self) -> tuple[IbNetwork, ...]:
        """The InfiniBand networks of the project. Raises CrusoeRefused."""
        path = self._in_project("networking/ib-networks")
        rows = self.read("list the InfiniBand networks", path)["items"]
        return tuple(
            IbNetwork(
                str(row["id"]),
                str(row["name"]),
                str(row["location"]),
                {str(each["slice_type"]): int(each["quantity"]) for each in row["capacities"]},
            )
            for row in rows
        )

    def facts(self, lookups: Lookups) -> CrusoeFacts:
        """What a plan has to know. Raises CrusoeRefused."""
        missing: list[str] = []
        images = self.read("list the images", "/compute/images")["items"]
        return CrusoeFacts(
            project=self.project,
            image=_image(images, lookups.image, lookups.location),
            bastion_image=_image(images, lookups.bastion_image, lookups.location),
            subnets=self._subnets(lookups, missing),
            missing=tuple(missing),
            quota=self._quota(lookups) if lookups.quota else None,
        )

    def _subnets(self, lookups: Lookups, missing: list[str]) -> tuple[Subnet, ...]:
        if lookups.network is None and not lookups.subnets:
            return ()
        rows = list(self.all(SUBNET))
        if lookups.subnets:
            picked = [(name, _called(rows, name)) for name in lookups.subnets]
        else:
            network = _called(list(self.all(NETWORK)), str(lookups.network))
            if network is None:
                missing.append(str(lookups.network))
                return ()
            picked = [(row["name"], row) for row in rows if row["vpc_network_id"] == network["id"]]
        missing += [name for name, row in picked if row is None]
        return tuple(
            Subnet(str(row["id"]), str(row["name"]), str(row["vpc_network_id"]), str(row["location"]))
            for _, row in picked
            if row is not None
        )

    def _quota(self, lookups: Lookups) -> Quota | None:
        """The quota of the type's GPUs, by the name of its family; None where none has that name."""
        family = lookups.instance_type.rpartition(".")[0]
        rows = self.read("ask for the quotas", self._in_project("quotas"))["quotas"]
        found = next((row for row in rows if row["programmatic_name"] == family), None)
        return None if found is None else Quota(family, int(found["max"]), int(found["used"]))


def _called(rows: Sequence[Row], name: str) -> Row | None:
    """The row of an id, or of a name."""
    return next((row for row in rows if name in (row["id"], row["name"])), None)


def _image(rows: Sequence[Row], wanted: str | None, location: str) -> Image | None:
    """An image by `name:tag`. One that floats (`latest`) is told by a tag beside it that does not, where it
    has one."""
    if wanted is None:
        return None
    name, _, tag = wanted.partition(":")
    for row in rows:
        tags = [str(each) for each in row.get("tags") or ()]
        places = row.get("locations") or ()
        if row["name"] == name and (tag or "latest") in tags and (not places or location in places):
            steady = sorted(each for each in tags if each != "latest")
            floats = tag in ("", "latest")
            return Image(f"{name}:{steady[-1] if floats and steady else tag or 'latest'}")
    return None


def _goes(row: Mapping[str, Any]) -> bool:
    """Whether a machine is about to go. States have a prefix, or have none."""
    return state_of(row) in ("DELETING", "DELETED")


def state_of(row: Mapping[str, Any]) -> str:
    """The state of a machine, without the prefix that some answers have: RUNNING."""
    return str(row.get("state", "")).upper().removeprefix("STATE_")


def _failed(what: str, operation: Mapping[str, Any]) -> CrusoeRefused:
    result = operation.get("result") or {}
    text = f"{result.get('code', '')}: {plain(str(result.get('message', '')))}"
    return CrusoeRefused(what, category(None, text), text)
