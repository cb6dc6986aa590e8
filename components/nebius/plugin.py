"""Resources of Nebius for the Pulumi engine: create, read, update and delete of each kind, by one client.

They are served by the executable `pulumi-resource-orch-nebius`, which is configured with the parts of a
service account's key, or with nothing where the SDK finds the way.

A create returns as soon as Nebius has said the id, so that it is recorded before anything is waited for; what
is still being made, or deleted, is waited for by whoever needs it next. It looks for the name first: what a
killed call, or a lost answer, left is taken over where it bears this stack's mark.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from orch.components.nebius.account import methods
from orch.components.nebius.account.client import WAITS, NebiusClient, is_down
from orch.components.nebius.account.errors import NebiusRefused
from orch.components.nebius.account.methods import INSTANCE, Kind, Row
from orch.components.nebius.account.orphans import MARK
from orch.components.nebius.account.session import PARTS, Session
from orch.components.nebius.explain import GANG, PACKAGE
from orch.providers.orch.gang import AccountProvider, GangHandler
from orch.providers.orch.handler import OBSERVED, Handler, Inputs, ProviderError, State
from orch.providers.orch.serving import serve

NAME = f"pulumi-resource-{PACKAGE}"

PAUSE_S = 2.0
"""How long to wait between two looks."""

AGAIN_S = 300.0
"""How long something may be in use by what is just being made or deleted."""

UP_S = 1200.0
"""How long machines with eight GPUs may take to run."""


class NebiusHandler:
    """Resources of one kind. Inputs: `project` (of a rule: its group), `name`, `labels`, `spec`."""

    computed: ClassVar[frozenset[str]] = frozenset()
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, kind: Kind, client: Callable[[], NebiusClient], *, pause_s: float = PAUSE_S) -> None:
        self._kind, self._client, self._pause_s = kind, client, pause_s

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        return [(key, "must be set") for key in ("project", "name", "spec") if inputs.get(key) in (None, "")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key != "labels"

    def create(self, inputs: Inputs) -> tuple[str, State]:
        key = str(uuid.uuid4())

        def begin() -> str:
            found = self._own(inputs)
            return (
                found
                if found is not None
                else self._client().create(self._kind, _metadata(inputs), self._spec(inputs), key).resource
            )

        resource = self._until_free(begin)
        return resource, {OBSERVED: {}}

    def _spec(self, inputs: Inputs) -> Row:
        return inputs["spec"]

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            found = self._client().get(self._kind, resource_id)
            if found is None:
                self._require_project(state)
        except NebiusRefused as refused:
            return {OBSERVED: {"reachable": False, "reason": refused.summary}}
        if found is None or (found.get("status") or {}).get("state") == "DELETING":
            return None
        return {OBSERVED: self._observed(found, state)}

    def _observed(self, found: Row, state: State) -> State:
        labels = found["metadata"].get("labels") or {}
        return {"labels": {key: labels[key] for key in labels if key in (state.get("labels") or {})}}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        metadata = {**_metadata(inputs), "id": resource_id}
        key = str(uuid.uuid4())
        spec = self._spec(inputs)
        self._until_free(lambda: self._client().update(self._kind, metadata, spec, key).resource)
        return {OBSERVED: {}}

    def delete(self, resource_id: str, state: State) -> None:
        if self._client().get(self._kind, resource_id) is None:
            self._require_project(state)
        self._client().remove(self._kind, resource_id, for_s=AGAIN_S, pause_s=self._pause_s)

    def _require_project(self, state: State) -> None:
        """Raise NebiusRefused if what is not found may be in a project that these credentials do not see. The
        parent of a rule is its group, which is asked for by itself."""
        if str(state.get("project", "")).startswith("project-"):
            self._client().require_project(state["project"])

    def _own(self, inputs: Inputs) -> str | None:
        """The id of what is there by this name. Raises ProviderError where it is not of this stack."""
        found = self._client().find(self._kind, inputs["project"], inputs["name"])
        if found is None:
            return None
        mark = (inputs.get("labels") or {}).get(MARK)
        if (found["metadata"].get("labels") or {}).get(MARK) != mark:
            raise ProviderError(
                f"there is a {self._kind.words} {inputs['name']} that this stack did not make",
                where=str(found["metadata"]["id"]),
                hint="delete it, or name the fleet otherwise",
                code="ORCH357",
            )
        return str(found["metadata"]["id"])

    def _until_free(self, act: Callable[[], str]) -> str:
        """Do something that is refused while what it needs is still being made or deleted, or that may have
        been done although no answer came: `act` looks before it does."""
        end = time.monotonic() + AGAIN_S
        while True:
            try:
                return act()
            except NebiusRefused as refused:
                if refused.category not in WAITS or time.monotonic() >= end:
                    raise
            time.sleep(self._pause_s)


class InstanceHandler(NebiusHandler):
    """Machines. A stopped one is no node: one that Nebius took back, or that lost its host, is made anew.

    Inputs beside the others: `user_data`, which is for the first boot, `layout`, of which another value makes
    a machine anew, and `status`. `waits`: its create ends when it runs, and takes back what does not come up:
    for a fleet that keeps what it got.
    """

    tools: ClassVar[frozenset[str]] = frozenset({"waits"})

    def __init__(self, client: Callable[[], NebiusClient], *, pause_s: float = PAUSE_S) -> None:
        super().__init__(INSTANCE, client, pause_s=pause_s)

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, outputs = super().create(inputs)
        if inputs.get("waits"):
            try:
                until_running(self._client(), {inputs["name"]: resource}, self._pause_s)
            except NebiusRefused:
                self.delete(resource, {})
                raise
        return resource, outputs

    def _spec(self, inputs: Inputs) -> Row:
        user_data = inputs.get("user_data")
        return {**inputs["spec"], **({"cloud_init_user_data": user_data} if user_data else {})}

    def _observed(self, found: Row, state: State) -> State:
        status = found.get("status") or {}
        down = is_down(status)
        observed = super()._observed(found, state)
        return {**observed, **({"status": "stopped" if down else "running"} if "status" in state else {})}


class NebiusGang(GangHandler[NebiusClient]):
    def wait(self, instances: Mapping[str, str]) -> State:
        found = until_running(self._client(), instances, self._pause_s)
        return {node: _assigned(found[each]) for node, each in instances.items()}


def until_running(client: NebiusClient, instances: Mapping[str, str], pause_s: float) -> dict[str, Row]:
    """Wait until all of these run; what they are, by id. `instances`: node -> id.

    Raises NebiusRefused as soon as one of them does not come up: the others are of no use alone.
    """
    end = time.monotonic() + UP_S
    while True:
        found = client.instances(list(instances.values()))
        for node, resource in instances.items():
            _check(client, node, resource, found.get(resource))
        late = [n for n, i in instances.items() if found[i]["status"].get("state") != "RUNNING"]
        if not late:
            return found
        if time.monotonic() >= end:
            message = f"{', '.join(sorted(late)[:8])} do not run after {UP_S / 60:.0f} minutes"
            raise NebiusRefused("bring the machines up", "transient", message)
        time.sleep(pause_s)


def _check(client: NebiusClient, node: str, resource: str, found: Row | None) -> None:
    if found is None:
        raise NebiusRefused(f"bring {node} up", "gone", f"the instance {resource} was deleted")
    status = found["status"]
    if status.get("state") in ("STOPPED", "ERROR") and not status.get("reconciling"):
        meaning, message = client.failure(INSTANCE, resource)
        raise NebiusRefused(f"bring {node} up", meaning, message)


def _assigned(found: Row) -> State:
    """What a node's state needs of a machine. Addresses come as `10.0.0.3/32`."""
    status = found["status"]
    nic = status["network_interfaces"][0]
    public = (nic.get("public_ip_address") or {}).get("address")
    return {
        "id": found["metadata"]["id"],
        "address": nic["ip_address"]["address"].partition("/")[0],
        "public": public.partition("/")[0] if public else None,
        "topology": (status.get("infiniband_topology_path") or {}).get("path") or [],
    }


def _metadata(inputs: Inputs) -> Row:
    return {"parent_id": inputs["project"], "name": inputs["name"], "labels": inputs.get("labels") or {}}


# Type -> the kind of its resources.
KINDS = {
    f"{PACKAGE}:index:Network": methods.NETWORK,
    f"{PACKAGE}:index:Subnet": methods.SUBNET,
    f"{PACKAGE}:index:SecurityGroup": methods.SECURITY_GROUP,
    f"{PACKAGE}:index:SecurityRule": methods.SECURITY_RULE,
    f"{PACKAGE}:index:GpuCluster": methods.GPU_CLUSTER,
}


class NebiusProvider(AccountProvider[NebiusClient]):
    """The resources of an account. `connect`: the client of a session."""

    def __init__(
        self, connect: Callable[[Session], NebiusClient] = NebiusClient, *, pause_s: float = PAUSE_S
    ) -> None:
        def handlers(account: Callable[[], NebiusClient]) -> dict[str, Handler]:
            return {
                **{token: NebiusHandler(kind, account, pause_s=pause_s) for token, kind in KINDS.items()},
                f"{PACKAGE}:index:Instance": InstanceHandler(account, pause_s=pause_s),
                GANG: NebiusGang(account, pause_s=pause_s),
            }

        super().__init__(handlers, lambda key: connect(Session(key)), parts=PARTS, gang=GANG)


def main() -> None:
    """Serve until the engine ends."""
    serve(NebiusProvider(), NAME)


if __name__ == "__main__":
    main()
