"""Serves Crusoe's resources to the Pulumi engine: the executable `pulumi-resource-orch-crusoe`.

It is configured with the parts of a login, which the state keeps as secrets. Crusoe has no labels, and does
not promise that names are unique: the name is all that tells whose something is, and what was asked for
(`cloud_name`). The gang waits for VMs.

VMs are made one by one: Crusoe's call for many gives all of them one startup script, and each node has a host
key of its own in its script. That call is not atomic either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from orch.components.cloud.rest.client import Row
from orch.components.cloud.rest.handler import AGAIN_S, KindHandler, wait_for_all
from orch.components.crusoe.account import client as kinds
from orch.components.crusoe.account.client import INSTANCE, OFF, CrusoeClient, Kind, state_of
from orch.components.crusoe.account.errors import CrusoeRefused
from orch.components.crusoe.account.login import PARTS, Login
from orch.components.crusoe.explain import GANG, PACKAGE
from orch.providers.orch.gang import AccountProvider, GangHandler
from orch.providers.orch.handler import OBSERVED, Handler, Inputs, State
from orch.providers.orch.serving import serve

NAME = f"pulumi-resource-{PACKAGE}"

SETTLE_S = 20.0
"""How long what a create made without an answer may take to be listed."""

UP_S = 1200.0
"""How long VMs may take to run. Source: dstack waits ten minutes for one."""

PAUSE_S = 2.0
"""Between two looks. Source: terraform-provider-crusoe internal/common/util.go."""

MOST_NAME = 63
"""Characters of a name. No limit is documented, but a VM has its name in DNS (terraform-provider-crusoe
internal/vm/util.go), where this is one (RFC 1035, 2.3.1)."""

DOWN = (*OFF, "CRASHED", "ERROR")


class CrusoeHandler(KindHandler[CrusoeClient]):
    """Resources of one kind."""

    most_name: ClassVar[int | None] = MOST_NAME

    def __init__(
        self,
        kind: Kind,
        client: Callable[[], CrusoeClient],
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(client, pause_s=pause_s, settle_s=settle_s)
        self.kind = kind

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, state = self.made(inputs)
        what = f"create the {self.kind.words} {self.name_of(inputs)}"
        self._client().settle(self.kind, state.get("operation", ""), what, for_s=AGAIN_S)
        return resource, {OBSERVED: {}}

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        """With the operation that makes it, empty where there is none."""
        resource, operation = self._client().create(self.kind, self._body(inputs))
        return resource, {"operation": operation}

    def _body(self, inputs: Inputs) -> Row:
        return {"name": self.name_of(inputs), **inputs["spec"]}


class InstanceHandler(CrusoeHandler):
    """VMs. A stopped one is no node: it is made anew.

    Inputs beside the others: `script`, which it runs at each boot, `public_key`, and `layout`, of which
    another value makes a VM anew. `waits`: its create ends when it runs, and takes back what does not come
    up: for a fleet that keeps what it got. `operation`: what makes it, empty where it was found.
    """

    computed: ClassVar[frozenset[str]] = frozenset({"operation"})
    tools: ClassVar[frozenset[str]] = frozenset({"waits"})

    def __init__(
        self,
        client: Callable[[], CrusoeClient],
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(INSTANCE, client, pause_s=pause_s, settle_s=settle_s)

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, state = self.made(inputs)
        operation = state.get("operation", "")
        if inputs.get("waits"):
            node = {inputs["name"]: {"id": resource, "operation": operation}}
            self.until_up(resource, lambda: until_running(self._client(), node, self._pause_s))
        return resource, {OBSERVED: {}, "operation": operation}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {OBSERVED: {}, "operation": state.get("operation", "")}

    def _body(self, inputs: Inputs) -> Row:
        own = {"ssh_public_key": inputs.get("public_key", ""), "startup_script": inputs.get("script", "")}
        return {**super()._body(inputs), **own}

    def observed(self, found: Row, state: State) -> State:
        if "status" not in state:
            return {}
        return {"status": "stopped" if state_of(found) in DOWN else "running"}


class CrusoeGang(GangHandler[CrusoeClient]):
    """`instances`: node -> its id, and the operation that makes it. One that failed has no id: of a fleet
    that keeps what it got the engine goes on without it."""

    def wait(self, instances: Mapping[str, Mapping[str, str]]) -> State:
        there = {node: each for node, each in instances.items() if each.get("id")}
        found = until_running(self._client(), there, self._pause_s)
        return {node: _assigned(row) for node, row in found.items()}


def until_running(
    client: CrusoeClient, instances: Mapping[str, Mapping[str, str]], pause_s: float
) -> dict[str, Row]:
    """Wait until all of these run: what they are, by node.

    Raises CrusoeRefused as soon as one of them does not come up: the others are of no use alone.
    """

    def look() -> dict[str, Row]:
        known = {str(row["id"]): row for row in client.all(INSTANCE)} if instances else {}
        found: dict[str, Row] = {}
        for node, each in instances.items():
            row = known.get(each["id"]) or _missing(client, node, each)
            if row is not None and state_of(row) in DOWN:
                message = f"the VM {each['id']} is {state_of(row).lower()}"
                raise CrusoeRefused(f"bring {node} up", "transient", message)
            if row is not None and state_of(row) == "RUNNING" and _addresses(row):
                found[node] = row
        return found

    def late(names: str) -> CrusoeRefused:
        message = f"{names} do not run after {UP_S / 60:.0f} minutes"
        return CrusoeRefused("bring the VMs up", "transient", message)

    return wait_for_all(instances, look, late, for_s=UP_S, pause_s=pause_s)


def _missing(client: CrusoeClient, node: str, each: Mapping[str, str]) -> Row | None:
    """A VM that is not listed: None while it is being made. Raises CrusoeRefused where it will not be."""
    what = f"bring {node} up"
    operation = each.get("operation", "")
    if operation and not client.operation(INSTANCE, operation, what):
        return None
    row = client.get(INSTANCE, each["id"])
    if row is None:
        raise CrusoeRefused(what, "gone", f"the VM {each['id']} is not there")
    return row


def _addresses(row: Row) -> tuple[str, str | None] | None:
    """The private and the public address of a VM, None while it has none."""
    for nic in row.get("network_interfaces") or ():
        for each in nic.get("ips") or ():
            private = (each.get("private_ipv4") or {}).get("address")
            if private:
                return str(private), (each.get("public_ipv4") or {}).get("address")
    return None


def _assigned(row: Row) -> State:
    """What a node's state needs of a VM."""
    addresses = _addresses(row)
    assert addresses is not None  # it was waited for
    private, public = addresses
    pod = row.get("pod_id")
    return {"id": row["id"], "address": private, "public": public, "topology": [pod] if pod else []}


# Type -> the kind of its resources.
KINDS = {
    "VpcNetwork": kinds.NETWORK,
    "VpcSubnet": kinds.SUBNET,
    "FirewallRule": kinds.RULE,
    "IbPartition": kinds.PARTITION,
    "Disk": kinds.DISK,
}


class CrusoeProvider(AccountProvider[CrusoeClient]):
    """The resources of a project. `connect`: the client of a login."""

    def __init__(
        self,
        connect: Callable[[Login], CrusoeClient] = CrusoeClient,
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        def handlers(account: Callable[[], CrusoeClient]) -> dict[str, Handler]:
            of_kinds = {
                f"{PACKAGE}:index:{name}": CrusoeHandler(kind, account, pause_s=pause_s, settle_s=settle_s)
                for name, kind in KINDS.items()
            }
            return {
                **of_kinds,
                f"{PACKAGE}:index:Instance": InstanceHandler(account, pause_s=pause_s, settle_s=settle_s),
                GANG: CrusoeGang(account, pause_s=pause_s),
            }

        def log_in(parts: Mapping[str, str]) -> CrusoeClient:
            return connect(Login(**{part: parts.get(part, "") for part in PARTS}))

        super().__init__(handlers, log_in, parts=PARTS, gang=GANG)


def main() -> None:
    """Serve until the engine ends."""
    serve(CrusoeProvider(), NAME)


if __name__ == "__main__":
    main()
