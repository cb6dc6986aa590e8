"""RunPod, asked by HTTP.

Calls are counted by minute, hour and day: 60 a minute in the example of
runpod/docs api-reference-v2 (RateLimit-Policy).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.cloud.rest.client import RestClient, Row, no_credentials, oldest_first
from orch.components.cloud_errors import Category, CategoryRefused
from orch.components.marks.orphans import NamedResource
from orch.components.runpod.account.errors import HINTS, RunpodRefused, category

if TYPE_CHECKING:
    from orch.spec.models.backends.runpod import RunpodSettings

KEY = "RUNPOD_API_KEY"
API = "https://api.runpod.io"
PAGE = 1000
"""Pods on a page. Of the other lists no page size is known: what they say of further pages is followed."""


@dataclass(frozen=True)
class Login:
    """An API key; `url`: where the API is."""

    key: str = field(repr=False)
    url: str = API


def open_login(settings: RunpodSettings) -> Login:
    """With the API key of orch.yml, else of the environment. Raises CloudRefused where there is none."""
    key = settings.creds.api_key if settings.creds is not None else os.environ.get(KEY)
    if key:
        return Login(key)
    raise no_credentials("RunPod", f"{KEY} is not set", HINTS["credentials"])


@dataclass(frozen=True)
class Kind:
    """A kind of resource. `path` and `items` are the API's; `words`: as people call it."""

    path: str
    items: str
    words: str


POD = Kind("/v2/pods", "pods", "pod")
CLUSTER = Kind("/v2/clusters", "clusters", "Instant Cluster")
VOLUME = Kind("/v2/network-volumes", "networkVolumes", "network volume")


@dataclass(frozen=True)
class Money:
    """Dollars: what the account has, what it spends in an hour, and what it may spend in one."""

    balance: float
    hourly: float
    limit: float

    def shortfall(self, hourly: float) -> str | None:
        """Why so many dollars an hour more cannot be spent; None where they can."""
        if self.hourly + hourly > self.limit:
            return (
                f"the spend limit is ${self.limit:.2f} an hour; ${self.hourly:.2f} are spent, "
                f"this needs ${hourly:.2f} more"
            )
        if self.balance < hourly:
            return f"the balance is ${self.balance:.2f}; one hour of this costs ${hourly:.2f}"
        return None


class RunpodClient(RestClient):
    """The account of an API key. Raises CloudRefused where httpx is not installed."""

    title: ClassVar[str] = "RunPod"
    extra: ClassVar[str] = "runpod"
    refused: ClassVar[type[CategoryRefused]] = RunpodRefused

    def __init__(self, login: Login, *, pause_s: float = 1.0) -> None:
        super().__init__(login.url, {"Authorization": f"Bearer {login.key}"}, pause_s=pause_s)

    # -- calls --------------------------------------------------------------------------------------------

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        return category(status, detail)

    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        """An ErrorResponse, of GraphQL a list of errors. Source: api-reference-v2/openapi.json."""
        if problem.get("status") == status and isinstance(problem.get("detail"), str):
            return isinstance(problem.get("title"), str)
        return isinstance(problem.get("errors"), list) and "title" not in problem

    def detail(self, problem: Mapping[str, Any]) -> str:
        """The detail, and each line of what is wrong with the body."""
        detail = problem.get("detail") or problem.get("title")
        return "; ".join(str(each) for each in (detail, *(problem.get("errors") or ())) if each)

    def _items(self, what: str, path: str, items: str) -> Iterator[Row]:
        size: Row = {"limit": PAGE} if path == POD.path else {}
        for page in self.pages(what, path, size, "cursor", _cursor):
            yield from self.part(what, page, items, list)

    def graphql(self, what: str, query: str) -> Row:
        """What a query answers: it changes nothing. GraphQL refuses with HTTP 200. Raises RunpodRefused."""
        answer = self.retried(lambda: self.call(what, "POST", "/graphql", body={"query": query}))
        if errors := answer.get("errors"):
            detail = "; ".join(str(each.get("message")) for each in errors)
            raise RunpodRefused(what, category(200, detail), detail, status=200)
        return self.part(what, answer, "data", dict)

    # -- resources ----------------------------------------------------------------------------------------

    def named(self, kind: Kind, name: str) -> list[Row]:
        """All of a kind by a name, the oldest first: names need not be unique. Raises RunpodRefused."""
        return oldest_first(self.all(kind, f"look for the {kind.words} {name}"), name, "createdAt")

    def all(self, kind: Kind, what: str = "") -> list[Row]:
        """All of a kind that are not about to go; no pods of clusters. Raises RunpodRefused."""
        rows = self._items(what or f"list what there is as {kind.words}", kind.path, kind.items)
        return [row for row in rows if row.get("status") != "TERMINATED"]

    def get(self, kind: Kind, resource: str) -> Row | None:
        """A resource by its id, None when it is gone. Raises RunpodRefused."""
        what = f"ask for the {kind.words} {resource}"
        found = self.unless_gone(lambda: self.read(what, f"{kind.path}/{resource}"))
        return None if found is None or found.get("status") == "TERMINATED" else found

    def create(self, kind: Kind, body: Mapping[str, Any]) -> str:
        """Begin to make a resource, by one call: its id. Raises RunpodRefused."""
        return str(self.call(f"create the {kind.words} {body['name']}", "POST", kind.path, body=body)["id"])

    def update(self, kind: Kind, resource: str, body: Mapping[str, Any]) -> None:
        self.call(f"change the {kind.words} {resource}", "PATCH", f"{kind.path}/{resource}", body=body)

    def delete(self, kind: Kind, resource: str) -> None:
        """Delete a resource; what is gone is no error. Raises RunpodRefused."""
        what = f"delete the {kind.words} {resource}"
        self.unless_gone(lambda: self.call(what, "DELETE", f"{kind.path}/{resource}"))

    def members(self, cluster: str) -> list[Row] | None:
        """The pods of a cluster, None when it is gone. Raises RunpodRefused."""
        what = f"ask for the pods of the Instant Cluster {cluster}"
        return self.unless_gone(lambda: list(self._items(what, f"{CLUSTER.path}/{cluster}/pods", "pods")))

    def removable(self) -> Iterator[NamedResource]:
        """All clusters and pods; network volumes hold data, and stay. Raises RunpodRefused."""
        for kind in (CLUSTER, POD):
            for row in self.all(kind):
                resource = str(row["id"])
                yield NamedResource(
                    kind.words,
                    resource,
                    str(row["name"]),
                    partial(self.delete, kind, resource),
                    str(row.get("dataCenterId") or ""),
                    row.get("createdAt"),
                    partial(self._hourly, kind, row),
                    alone=kind is POD,
                )

    def _hourly(self, kind: Kind, row: Row) -> float:
        pods = [row] if kind is POD else self.members(str(row["id"])) or []
        return round(sum(float(pod["cost"]) for pod in pods), 4)

    # -- what there is, and what it costs -----------------------------------------------------------------

    def stock(self, product: str, gpus: int, *, community: bool = False) -> dict[tuple[str, str], str]:
        """(GPU, data center) -> LOW, MEDIUM or HIGH, of what has `gpus` GPUs on one machine. `product`: POD
        or CLUSTER; the stock for clusters is that of their GPUs, and promises no cluster. Raises
        RunpodRefused."""
        cloud = "COMMUNITY" if community else "SECURE"
        query = {"include": "AVAILABILITY", "product": product, "count": gpus, "cloud": cloud}
        rows = self.rows("ask for the stock", "/v2/catalog/gpus", "gpus", query)
        return {
            (row["id"], center["id"]): center["availability"]
            for row in rows
            for center in row.get("dataCenters", ())
            if center["availability"] != "NONE"
        }

    def volume_types(self) -> dict[str, tuple[str, ...]]:
        """Data center -> the types of network volumes that it has. Raises RunpodRefused."""
        rows = self.rows("ask for the data centers", "/v2/catalog/datacenters", "dataCenters")
        return {str(row["id"]): tuple(row.get("networkVolumeTypes") or ()) for row in rows}

    def user(self) -> str:
        """Return the id of the user, or of the team, that the key is of. Raises RunpodRefused.

        REST v2 has no route for it. Source: GraphQL schema of RunPod, `myself: User`.
        """
        what = "ask whose the API key is"
        myself = self.part(what, self.graphql(what, "query { myself { id } }"), "myself", dict)
        return self.part(what, myself, "id", str)

    def money(self) -> Money:
        """Raises RunpodRefused."""
        query = "query { myself { clientBalance currentSpendPerHr spendLimit } }"
        what = "ask for the balance"
        row = self.part(what, self.graphql(what, query), "myself", dict)
        limit = row.get("spendLimit")
        return Money(
            float(self.part(what, row, "clientBalance", (int, float))),
            float(self.part(what, row, "currentSpendPerHr", (int, float))),
            float("inf") if limit is None else float(limit),
        )

    def pod_prices(self) -> dict[str, float]:
        """GPU -> dollars an hour for one in a pod of the secure cloud. Raises RunpodRefused."""
        rows = self.rows("ask for the prices", "/v2/catalog/gpus", "gpus")
        return {row["id"]: float(row["price"]["secure"]) for row in rows if row["price"].get("secure")}

    def cluster_prices(self) -> dict[str, float]:
        """GPU -> dollars an hour for one in a cluster; REST v2 tells those of pods alone. Raises
        RunpodRefused."""
        query = "query { gpuTypes(input: {cluster: true}) { id clusterPrice } }"
        rows = self.graphql("ask for the prices of clusters", query)["gpuTypes"]
        return {row["id"]: float(row["clusterPrice"]) for row in rows if row.get("clusterPrice")}


def _cursor(page: Row) -> Any:
    """The cursor of the next page."""
    pagination = page.get("pagination")
    return pagination.get("nextCursor") if isinstance(pagination, dict) else None
