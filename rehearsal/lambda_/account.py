"""One simulated Lambda account, with an API key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import ClassVar

from orch.rehearsal.http_service import HttpAccount, Request, Routes
from orch.rehearsal.lambda_.api import errors
from orch.rehearsal.lambda_.api.instances import ended, reserved
from orch.rehearsal.lambda_.api.resources import RULES_KEY, USUAL, rules_of
from orch.rehearsal.lambda_.api.routes import route
from orch.rehearsal.lambda_.data.tables import kinds
from orch.rehearsal.machines import SimulatedMachine, device_files
from orch.rehearsal.store import Doc

KINDS = ("ssh-key", "filesystem", "instance")


class LambdaCloud(HttpAccount):
    """A Lambda account in a file. Knobs: capacity of `TYPE@REGION` in instances; the quota `instances`; rates
    of `*` and `launchInstance`."""

    name: ClassVar[str] = "lambda"
    hidden: ClassVar[frozenset[str]] = frozenset({"user_data"})
    errors: ClassVar[ModuleType] = errors
    routes: ClassVar[Routes] = route
    shows_instances: ClassVar[frozenset[str]] = frozenset({"listInstances", "getInstance"})

    @property
    def api_key(self) -> str:
        return f"secret_{self.seed}_rehearsal"

    # -- calls --------------------------------------------------------------------------------------------

    def check_caller(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        if headers.get("authorization") != f"Bearer {self.api_key}":
            raise errors.bad_key()

    # -- behind the back ----------------------------------------------------------------------------------

    def shut_down(self, instance: str) -> None:
        self._end(instance, "terminating")

    def order_cluster(self, name: str, kind: str, head: str, nodes: Sequence[str]) -> str:
        """Somebody orders a 1-Click Cluster, as its console does: its id. `head`: the public address of its
        head node, `nodes`: private ones of the others."""
        cluster = hashlib.sha256(f"{self.seed} {name}".encode()).hexdigest()[:32]
        members = [(f"{name}-head-001", "cpu_4x_general", {"ip": head, "private_ip": "10.0.0.1"})]
        members += [
            (f"{name}-node-{number:03}", kind, {"private_ip": address})
            for number, address in enumerate(nodes, 1)
        ]
        with self.store.transaction():
            for each, type_, addresses in members:
                instance = hashlib.sha256(f"{cluster} {each}".encode()).hexdigest()[:32]
                self.store.put(
                    instance, "instance", "us-east-1", reserved(instance, each, type_, cluster, addresses)
                )
        return cluster

    def lose_host(self, instance: str) -> None:
        """The host of an instance breaks: it is unhealthy from now on."""
        self._end(instance, "unhealthy")
        self.follow_behind_the_back()

    def _end(self, instance: str, status: str) -> None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
            if doc is not None:
                ended(Request(self, "", instance, {}, None), doc, status)

    # -- what a test may ask ------------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        """Firewall rules by their description, each once."""
        made = self.created_resources(KINDS, unless=lambda doc: bool(doc.get("_cluster")))
        return made | {str(each["description"]): "rules" for each in self.rules() if each not in USUAL}

    def rules(self) -> list[Doc]:
        with self.store.transaction():
            return rules_of(self.store)

    def put_rules(self, rules: list[Doc]) -> None:
        """Somebody changes the account's rules."""
        with self.store.transaction():
            self.store.put_meta(RULES_KEY, rules)

    # -- local nodes --------------------------------------------------------------------------------------

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
        if doc is None or doc["status"] != "active" or not doc["_user_data"]:
            return None
        kind = kinds()[doc["_type"]]
        return SimulatedMachine(
            instance=instance,
            slug=instance[:13],
            hostname=doc["hostname"] or doc["name"],
            type=kind.name,
            user_data=doc["_user_data"].encode(),
            placeholders=device_files(kind.gpus),
            file_systems=tuple((source, path) for path, source in doc["_mounts"].items()),
        )
