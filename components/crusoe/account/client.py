"""Crusoe, asked by HTTP: each call is signed. Changes are operations, asked for until they have ended.

Source: crusoecloud/client-go swagger/v1/swagger.json and auth/v1/auth.go @e23c062.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from orch.components.cloud.quotas import if_readable
from orch.components.cloud.rest.client import RestClient, Row, oldest_first
from orch.components.cloud_errors import Category, CategoryRefused
from orch.components.crusoe.account.errors import CrusoeRefused, category, plain
from orch.components.crusoe.account.facts import (
    CrusoeFacts,
    IbNetwork,
    Image,
    Lookups,
    Quota,
    Reservation,
    Stock,
    Subnet,
)
from orch.components.crusoe.account.login import ENDPOINT, MOST_OFF_S, VERSION, Login, signature
from orch.components.marks.marked import Price
from orch.components.marks.orphans import NamedResource

if TYPE_CHECKING:
    import httpx


PAGE = 100

OFF = ("STOPPED", "SHUTOFF")
"""States of a VM that is off, whoever turned it off: it is not billed, but for its disks. Source:
support.crusoecloud.com 48176498638235 (only RUNNING is billed); terraform-provider-crusoe internal/vm."""


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

ORDER = (INSTANCE, DISK, PARTITION, RULE, SUBNET, NETWORK)
"""What is used by others comes after them."""

GONE_S = 1200.0
"""How long something may take to go."""


class CrusoeClient(RestClient):
    """The project of a login. Raises CloudRefused where httpx is not installed."""

    title: ClassVar[str] = "Crusoe"
    extra: ClassVar[str] = "crusoe"
    refused: ClassVar[type[CategoryRefused]] = CrusoeRefused
    endpoint: ClassVar[str | None] = ENDPOINT

    def __init__(
        self, login: Login, *, pause_s: float = 1.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        super().__init__(login.url, pause_s=pause_s, transport=transport)
        self._login = login
        self._base = urlsplit(login.url).path.rstrip("/")

    @property
    def project(self) -> str:
        return self._login.project

    # -- calls --------------------------------------------------------------------------------------------

    def signed(self, what: str, method: str, path: str, query: str) -> Mapping[str, str]:
        login = self._login
        try:
            stamp = datetime.now(timezone.utc).replace(microsecond=0).isoformat()
            signed = signature(login.secret_key, method, f"{self._base}{path}", query, stamp)
        except ValueError as error:
            raise CrusoeRefused(what, "credentials", f"the secret key does not read: {error}") from error
        return {
            "X-Crusoe-Timestamp": stamp,
            "Authorization": f"Bearer {VERSION}:{login.access_key}:{signed}",
        }

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        # An operation that is not known is a 403 of Crusoe's own (`operation`).
        return "transient" if status == 403 and not self.is_own(status, problem) else category(status, detail)

    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        """A document with a code and a message. Source: swagger.json, the responses of errors."""
        code, message = problem.get("code"), problem.get("message")
        if not isinstance(code, str) or not isinstance(message, str):
            return False
        return code == str(status) or not code.isdecimal()

    def detail(self, problem: Mapping[str, Any]) -> str:
        message = plain(str(problem.get("message") or ""))
        return f"{message} ({problem['reason']})" if problem.get("reason") else message

    def remark(self, meaning: Category, headers: Mapping[str, str]) -> str:
        return _clock_words(headers, time.time()) if meaning == "credentials" else ""

    def _in_project(self, path: str) -> str:
        return f"/projects/{self._login.project}/{path}"

    # -- resources ----------------------------------------------------------------------------------------

    def all(self, kind: Kind, query: Mapping[str, str] | None = None) -> Iterator[Row]:
        """All of a kind that are not about to go. Raises CrusoeRefused."""
        paged = {"limit": str(PAGE), **(query or {})} if kind is INSTANCE else dict(query or {})
        what, path = f"list each {kind.words}", self._in_project(kind.path)
        for page in self.pages(what, path, paged, "next_token", lambda page: page.get("next_token")):
            yield from (row for row in self.part(what, page, "items", list) if not _goes(row))

    def named(self, kind: Kind, name: str) -> list[Row]:
        """All of a kind by a name, the oldest first: that names are unique is not documented. Raises
        CrusoeRefused."""
        query = {"names": name} if kind is INSTANCE else None
        return oldest_first(self.all(kind, query), name, "created_at")

    def get(self, kind: Kind, resource: str) -> Row | None:
        """A resource by its id, None when it is gone. Raises CrusoeRefused."""
        found = self._found(kind, resource)
        return None if found is None or _goes(found) else found

    def _found(self, kind: Kind, resource: str) -> Row | None:
        """A resource, also one that is about to go."""
        path = self._in_project(f"{kind.path}/{resource}")
        return self.unless_gone(lambda: self.read(f"ask for the {kind.words} {resource}", path))

    def ended(self, ids: Collection[str]) -> frozenset[str]:
        """Those of these VMs that are off; Crusoe does not tell who turned them off. Raises CrusoeRefused."""
        rows = self.all(INSTANCE) if ids else ()
        return frozenset(str(row["id"]) for row in rows if row["id"] in ids and state_of(row) in OFF)

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
        path = self._in_project(f"{kind.path}/{resource}")
        self.unless_gone(lambda: self.call(f"delete the {kind.words} {resource}", "DELETE", path))

    def remove(self, kind: Kind, resource: str, *, for_s: float) -> None:
        """See `until_gone`. Raises CrusoeRefused."""

        def delete() -> bool:
            found = self._found(kind, resource)
            if found is not None and not _goes(found):
                self.delete(kind, resource)
            return found is not None

        self.until_gone(f"{kind.words} {resource}", delete, for_s=for_s)

    def removable(self, price: Price) -> Iterator[NamedResource]:
        """All of all kinds, of which what others use comes last. Raises CrusoeRefused."""
        for kind in ORDER:
            for row in list(self.all(kind)):
                yield self._named_resource(kind, row, price)

    def _named_resource(self, kind: Kind, row: Row, price: Price) -> NamedResource:
        def hourly() -> float | None:
            if kind is INSTANCE:
                return price(str(row["type"]), location, False)
            return None if kind is DISK else 0.0

        resource, location = str(row["id"]), str(row.get("location") or "")
        remove = partial(self.remove, kind, resource, for_s=GONE_S)
        return NamedResource(
            kind.words,
            resource,
            str(row["name"]),
            remove,
            location or self.project,
            row.get("created_at"),
            hourly,
        )

    # -- what a plan has to know ---------------------------------------------------------------------------

    def stock(self) -> Stock:
        """(type, location) -> what there is in Crusoe's own count. Raises CrusoeRefused."""
        rows = self.rows("ask for the stock", "/capacities", "items")
        found: dict[tuple[str, str], int] = {}
        for row in rows:
            key = str(row["type"]), str(row["location"])
            found[key] = max(found.get(key, 0), int(row["quantity"]))
        return found

    def ib_networks(self) -> tuple[IbNetwork, ...]:
        """The InfiniBand networks of the project. Raises CrusoeRefused."""
        path = self._in_project("networking/ib-networks")
        rows = self.rows("list the InfiniBand networks", path, "items")
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
        missing, unread = list[str](), list[str]()
        images = self.rows("list the images", "/compute/images", "items")
        return CrusoeFacts(
            project=self.project,
            image=_image(images, lookups.image, lookups.location),
            bastion_image=_image(images, lookups.bastion_image, lookups.location),
            subnets=self._subnets(lookups, missing),
            missing=tuple(missing),
            quota=if_readable(unread, lambda: self._quota(lookups)) if lookups.quota else None,
            unread=tuple(unread),
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
        rows = self.rows("ask for the quotas", self._in_project("quotas"), "quotas")
        found = next((row for row in rows if row["programmatic_name"] == family), None)
        return None if found is None else Quota(family, int(found["max"]), int(found["used"]))

    def reservations(self) -> tuple[Reservation, ...] | None:
        """Those of the project's organization, None where this access key may not list them. Raises
        CrusoeRefused."""
        what = "list the reservations"
        try:
            project = self.read(what, f"/organizations/projects/{self.project}")
            organization = self.part(what, project, "organization_id", str)
            rows = self.rows(what, f"/organizations/{organization}/reservations", "items")
        except CrusoeRefused as refused:
            if refused.category == "permission":
                return None
            raise
        return tuple(
            Reservation(
                str(row["id"]),
                int(row["quantity"]),
                int(row["used_quantity"]),
                tuple(row.get("projects") or ()),
                tuple(row.get("locations") or ()),
            )
            for row in rows
        )


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


def _clock_words(headers: Mapping[str, str], now: float) -> str:
    """That this machine's clock is off, by which requests are signed; empty where it is not."""
    try:
        off = now - parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError):
        return ""
    ahead = "ahead of" if off > 0 else "behind"
    words = f"; this machine's clock is {abs(off):.0f} s {ahead} Crusoe's, and requests are signed by it"
    return words if abs(off) > MOST_OFF_S else ""
