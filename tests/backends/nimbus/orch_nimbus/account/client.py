"""Nimbus's API over HTTP. Name its documentation and version here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from orch.components.cloud.rest.client import RestClient, Row, check_address, check_key, no_credentials
from orch.components.cloud_errors import Category
from orch.components.marks.marked import Price
from orch.components.marks.orphans import NamedResource
from orch_nimbus.account.errors import HINTS, NimbusRefused, category
from orch_nimbus.account.facts import Image, Machine, Stock, TypeStock

if TYPE_CHECKING:
    from orch_nimbus.settings import NimbusSettings

API = "https://api.nimbus.example/v1"
KEY, ENDPOINT = "NIMBUS_API_KEY", "NIMBUS_API_ENDPOINT"
PARTS = ("api_key", "url")
"""The parts of a login, with which the provider is configured."""

GONE_S = 600.0
"""How long a machine may take to go."""


@dataclass(frozen=True)
class Login:
    """An API key; `url`: where the API is, with its version."""

    api_key: str = field(repr=False)
    url: str = API

    @property
    def key(self) -> dict[str, str]:
        return {part: str(getattr(self, part)) for part in PARTS}


def open_login(settings: NimbusSettings) -> Login:
    """Return a login with the key of orch.yml, else of the environment. Raises CloudRefused."""
    key = settings.creds.api_key if settings.creds is not None else os.environ.get(KEY)
    if not key:
        raise no_credentials("Nimbus", f"{KEY} not set", HINTS["credentials"])
    url = os.environ.get(ENDPOINT) or API
    check_address("Nimbus", url=url, variable=ENDPOINT, usual=API)
    check_key("Nimbus", key, HINTS["credentials"])
    return Login(key, url)


class NimbusClient(RestClient):
    """The account of a key. All methods raise NimbusRefused."""

    title = "Nimbus"
    extra = "nimbus"
    refused = NimbusRefused
    endpoint = ENDPOINT

    def __init__(self, login: Login, *, pause_s: float = 2.0) -> None:
        super().__init__(login.url, {"Authorization": f"Bearer {login.api_key}"}, pause_s=pause_s)

    # -- refusals

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        return category(status, self.code(problem))

    def code(self, problem: Mapping[str, Any]) -> str:
        """Return the code in the body of a refusal, empty if it has none."""
        return str(_fault(problem).get("code") or "")

    def detail(self, problem: Mapping[str, Any]) -> str:
        return str(_fault(problem).get("text") or "")

    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        return bool(self.code(problem))

    # -- machines

    def machines(self) -> list[Machine]:
        """Return all machines of the account, without those that are gone."""
        known = map(_machine, self.rows("list the servers", "/servers", "servers"))
        return [each for each in known if each.status != "gone"]

    def machine(self, machine_id: str) -> Machine | None:
        """Return a machine, None if it is gone."""
        what = f"ask for the server {machine_id}"
        answer = self.unless_gone(lambda: self.read(what, f"/servers/{machine_id}"))
        found = None if answer is None else _machine(self.part(what, answer, "server", dict))
        return None if found is None or found.status == "gone" else found

    def launch(self, name: str, spec: Mapping[str, Any], user_data: str) -> str:
        """Create a machine by one call, and return its id without waiting for it.

        `spec`: `type`, `region`, `image`, and `ssh_from`, the networks that may reach its port 22.
        """
        what = f"create the server {name}"
        body = {
            "label": name,
            "plan": spec["type"],
            "region": spec["region"],
            "image": spec["image"],
            "cloud_init": user_data,
            "allow_ssh": list(spec["ssh_from"]),
        }
        answer = self.call(what, "POST", "/servers", body=body)
        return self.part(what, self.part(what, answer, "server", dict), "id", str)

    def delete(self, machine_id: str) -> None:
        """Begin to delete a machine. One that is gone already is no error."""
        what = f"delete the server {machine_id}"
        self.unless_gone(lambda: self.call(what, "DELETE", f"/servers/{machine_id}"))

    def remove(self, machine_id: str, *, for_s: float = GONE_S) -> None:
        """Delete a machine, and wait until it is gone."""

        def delete() -> bool:
            there = self.machine(machine_id) is not None
            if there:
                self.delete(machine_id)
            return there

        self.until_gone(f"machine {machine_id}", delete, for_s=for_s)

    def removable(self, price: Price) -> Iterator[NamedResource]:
        """Yield all that a stack may have left here."""
        for each in self.machines():
            remove, hourly = partial(self.remove, each.id), partial(price, each.type, each.region, False)
            yield NamedResource(
                "instance", each.id, each.name, remove, each.region, each.created or None, hourly
            )

    # -- facts

    def stock(self) -> Stock:
        """Return the types that this account may buy now."""
        return {
            str(row["name"]): TypeStock(int(row["disk_gib"]), frozenset(row["free_in"]))
            for row in self.rows("ask for the plans", "/plans", "plans")
        }

    def image(self, name: str, region: str) -> Image | None:
        """Return the machine image of a name or id in a region, None if there is none."""
        rows = self.rows("ask for the images", "/images", "images", {"region": region})
        found = [row for row in rows if name == row["id"] or str(row["name"]).startswith(name)]
        newest = max(found, key=lambda row: str(row["name"]), default=None)
        return None if newest is None else Image(str(newest["id"]), str(newest["name"]))


_STATUS: Mapping[str, Literal["starting", "running", "failed", "gone"]] = {
    "BOOT": "starting",
    "ON": "running",
    "BROKEN": "failed",
    "OFF": "gone",
}


def _machine(row: Row) -> Machine:
    return Machine(
        str(row["id"]),
        str(row["label"]),
        str(row["plan"]),
        str(row["region"]),
        _STATUS[row["state"]],
        str(row["net"].get("private") or ""),
        str(row["net"].get("public") or ""),
        str(row["made"]),
    )


def _fault(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    fault = problem.get("fault")
    return fault if isinstance(fault, Mapping) else {}
