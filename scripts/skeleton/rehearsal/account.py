"""One simulated Newcloud account, with an API key."""

from __future__ import annotations

from collections.abc import Mapping

from orch.rehearsal.http_service import HttpAccount, Request
from orch.rehearsal.machines import SimulatedMachine, device_files
from orch.rehearsal.newcloud.api import errors
from orch.rehearsal.newcloud.api.machines import KIND, ended
from orch.rehearsal.newcloud.api.routes import SHOWS, route
from orch.rehearsal.newcloud.data.tables import kinds
from orch.rehearsal.store import Doc


class NewcloudAccount(HttpAccount):
    """An account in a file. Knobs: capacity of `TYPE@REGION`; the quota `machines`; rates."""

    name = "newcloud"
    hidden = frozenset({"user_data"})
    errors = errors
    routes = route
    shows_instances = SHOWS

    @property
    def api_key(self) -> str:
        return f"key-{self.seed}-rehearsal"

    def check_caller(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        if headers.get("authorization") != f"Bearer {self.api_key}":
            raise errors.bad_key()

    def shut_down(self, instance: str) -> None:
        self._end(instance, "gone")

    def lose_host(self, instance: str) -> None:
        """Break the host of a machine."""
        self._end(instance, "failed")
        self.follow_behind_the_back()

    def _end(self, instance: str, status: str) -> None:
        with self.store.transaction():
            doc = self.store.get(instance, KIND)
            if doc is not None:
                ended(Request(self, "", instance, {}, None), doc, status)

    def instances(self, region: str | None = None) -> dict[str, Doc]:
        known = super().instances(region)
        return {machine: doc for machine, doc in known.items() if doc["status"] != "gone"}

    def everything(self) -> dict[str, str]:
        return dict.fromkeys(self.instances(), KIND)

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, KIND)
        if doc is None or doc["status"] != "running" or not doc["user_data"]:
            return None
        return SimulatedMachine(
            instance=instance,
            slug=instance[:13],
            hostname=doc["name"],
            type=doc["type"],
            user_data=doc["user_data"].encode(),
            placeholders=device_files(kinds()[doc["type"]].gpus),
        )
