"""Newcloud's API over HTTP. Name its documentation and version here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from orch.components.cloud.rest.client import RestClient, check_address, check_key, no_credentials
from orch.components.cloud_errors import Category
from orch.components.marks.marked import Price
from orch.components.marks.orphans import NamedResource
from orch.components.newcloud.account.errors import HINTS, NewcloudRefused, category
from orch.components.newcloud.account.facts import Image, Machine, Stock

if TYPE_CHECKING:
    from orch.spec.models.backends.newcloud import NewcloudSettings

API = "https://api.newcloud.example/v1"
KEY, ENDPOINT = "NEWCLOUD_API_KEY", "NEWCLOUD_API_ENDPOINT"
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


def open_login(settings: NewcloudSettings) -> Login:
    """Return a login with the key of orch.yml, else of the environment. Raises CloudRefused."""
    key = settings.creds.api_key if settings.creds is not None else os.environ.get(KEY)
    if not key:
        raise no_credentials("Newcloud", f"{KEY} not set", HINTS["credentials"])
    url = os.environ.get(ENDPOINT) or API
    check_address("Newcloud", url=url, variable=ENDPOINT, usual=API)
    check_key("Newcloud", key, HINTS["credentials"])
    return Login(key, url)


class NewcloudClient(RestClient):
    """The account of a key. All methods raise NewcloudRefused."""

    title = "Newcloud"
    extra = "newcloud"
    refused = NewcloudRefused
    endpoint = ENDPOINT

    def __init__(self, login: Login, *, pause_s: float = 2.0) -> None:
        super().__init__(login.url, {"Authorization": f"Bearer {login.api_key}"}, pause_s=pause_s)

    # -- refusals

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        return category(status, self.code(problem))

    def code(self, problem: Mapping[str, Any]) -> str:
        """Return the code in the body of a refusal, empty if it has none."""
        raise NotImplementedError("read the code of a refusal")

    def detail(self, problem: Mapping[str, Any]) -> str:
        raise NotImplementedError("read the message of a refusal")

    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        return bool(self.code(problem))

    # -- machines

    def machines(self) -> list[Machine]:
        """Return all machines of the account, without those that are gone."""
        raise NotImplementedError("list the machines")

    def machine(self, machine_id: str) -> Machine | None:
        """Return a machine, None if it is gone."""
        raise NotImplementedError("get a machine")

    def launch(self, name: str, spec: Mapping[str, Any], user_data: str) -> str:
        """Create a machine by one call, and return its id without waiting for it.

        `spec`: `type`, `region`, `image`, and `ssh_from`, the networks that may reach its port 22.
        """
        raise NotImplementedError("create a machine")

    def delete(self, machine_id: str) -> None:
        """Begin to delete a machine. One that is gone already is no error."""
        raise NotImplementedError("delete a machine")

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
        raise NotImplementedError("ask for types and capacity")

    def image(self, name: str, region: str) -> Image | None:
        """Return the machine image of a name or id in a region, None if there is none."""
        raise NotImplementedError("find a machine image")
