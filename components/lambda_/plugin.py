"""Serves Lambda's resources to the Pulumi engine: the executable `pulumi-resource-orch-lambda`.

It is configured with the parts of a login, which the state keeps as secrets. A launch makes one instance; the
client lets five a minute through, whatever the engine does at once. The gang waits for instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from orch.components.cloud.rest.client import Row
from orch.components.cloud.rest.handler import AGAIN_S, KindHandler, NamedHandler, wait_for_all
from orch.components.lambda_.account.client import FILE_SYSTEM, INSTANCE, SSH_KEY, TAG, LambdaClient
from orch.components.lambda_.account.errors import LambdaRefused
from orch.components.lambda_.account.login import PARTS, Login
from orch.components.lambda_.explain import GANG, PACKAGE
from orch.components.marks.marked import cloud_name
from orch.providers.orch.gang import AccountProvider, GangHandler
from orch.providers.orch.handler import Handler, Inputs, State
from orch.providers.orch.serving import serve

NAME = f"pulumi-resource-{PACKAGE}"

UP_S = 1800.0
"""How long an instance may boot. Source: dstack waits thirty minutes for one."""

PAUSE_S = 5.0
"""Between two looks: the account takes one call a second."""

MOST_NAME, MOST_FILE_SYSTEM_NAME = 64, 60
"""Letters of a name. Source: Lambda Cloud API 1.10, InstanceLaunchRequest, FilesystemCreateRequest."""

SETTLE_S = 30.0
"""How long what a create made without an answer may take to be listed."""


class LambdaHandler(KindHandler[LambdaClient]):
    """Resources of one kind, which Lambda has by their name."""

    most_name: ClassVar[int | None] = MOST_NAME

    def __init__(
        self, client: Callable[[], LambdaClient], *, pause_s: float = PAUSE_S, settle_s: float = SETTLE_S
    ) -> None:
        super().__init__(client, pause_s=pause_s, settle_s=settle_s)

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        return self._client().create(self.kind, {"name": self.name_of(inputs), **inputs["spec"]}), {}


class SshKeyHandler(LambdaHandler):
    """The one key that a launch has to name. Its id is what others ask for; they launch by its `key_name`."""

    kind: Any = SSH_KEY
    computed: ClassVar[frozenset[str]] = frozenset({"key_name"})

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, state = super().create(inputs)
        return resource, {**state, "key_name": self.name_of(inputs)}

    def read(self, resource_id: str, state: State) -> State | None:
        seen = super().read(resource_id, state)
        return None if seen is None else {**seen, "key_name": state.get("key_name", "")}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {**super().update(resource_id, state, inputs), "key_name": state.get("key_name", "")}


class FileSystemHandler(LambdaHandler):
    """File systems that are made with a fleet. They hold data: of several by one name none is deleted."""

    kind: Any = FILE_SYSTEM
    most_name: ClassVar[int | None] = MOST_FILE_SYSTEM_NAME

    def own(self, inputs: Inputs) -> str | None:
        found = self._client().named(FILE_SYSTEM, self.name_of(inputs))
        return str(found[0]["id"]) if found else None


class FirewallHandler(NamedHandler[LambdaClient]):
    """The rules that a fleet adds to those of the account, which are told by their description: its id.

    `spec`: `rules`, without descriptions. Those of others stay as they are.
    """

    def __init__(
        self, client: Callable[[], LambdaClient], *, pause_s: float = PAUSE_S, settle_s: float = SETTLE_S
    ) -> None:
        super().__init__(client, pause_s=pause_s, settle_s=settle_s)

    def name_of(self, inputs: Inputs) -> str:
        """Whatever was asked for: other rules of the same fleet take the place of these."""
        return cloud_name(inputs["name"], inputs["mark"], {}, most=MOST_NAME)

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key in ("name", "mark")

    def own(self, inputs: Inputs) -> str | None:
        wanted = self._rules(inputs)
        name = self.name_of(inputs)
        there = [row for row in self._client().rules() if row.get("description") == name]
        return name if there and _plain(there) == _plain(wanted) else None

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        """Merge them into the account's, and see that they stay when somebody else puts theirs."""
        self._put(self.name_of(inputs), self._rules(inputs))
        return self.name_of(inputs), {}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        self._put(resource_id, self._rules(inputs))
        return super().update(resource_id, state, inputs)

    def remove(self, resource_id: str) -> None:
        self._client().drop_rules(resource_id, for_s=AGAIN_S)

    def delete(self, resource_id: str, state: State) -> None:
        self.remove(resource_id)

    def look(self, resource_id: str, state: State) -> State | None:
        there = [row for row in self._client().rules() if row.get("description") == resource_id]
        if not there:
            return None
        rules = [{key: row[key] for key in row if key != "description"} for row in there]
        wanted = (state.get("spec") or {}).get("rules") or []
        return {} if _plain(rules) == _plain(wanted) else {"spec": {"rules": rules}}

    def _rules(self, inputs: Inputs) -> list[Row]:
        name = self.name_of(inputs)
        return [
            {**each, "port_range": [int(port) for port in each["port_range"]], "description": name}
            for each in inputs["spec"]["rules"]
        ]

    def _put(self, name: str, own: Sequence[Row]) -> None:
        def merged(rules: Sequence[Row]) -> list[Row]:
            there = [row for row in rules if row.get("description") == name]
            if _plain(there) == _plain(own):
                return list(rules)
            return [*(row for row in rules if row.get("description") != name), *own]

        self._client().change_rules(merged, for_s=AGAIN_S)


def _plain(rules: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[int, ...], str]]:
    """Rules as they may be compared: numbers that the engine passes on are no integers."""
    return sorted(
        (
            str(row["protocol"]),
            tuple(int(each) for each in row.get("port_range") or ()),
            str(row["source_network"]).removesuffix("/32"),
        )
        for row in rules
    )


class InstanceHandler(LambdaHandler):
    """Instances. One that is terminated is gone; an unhealthy one is no node: it is made anew.

    Inputs beside the others: `user_data`, which is for the first boot, and `layout`, of which another value
    makes an instance anew. `waits`: its create ends when it is active, and takes back what does not come up:
    for a fleet that keeps what it got.
    """

    kind: Any = INSTANCE
    tools: ClassVar[frozenset[str]] = frozenset({"waits"})

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, state = super().create(inputs)
        if inputs.get("waits"):
            node = {inputs["name"]: resource}
            self.until_up(resource, lambda: until_active(self._client(), node, self._pause_s))
        return resource, state

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        name = self.name_of(inputs)
        own = {"name": name, **inputs["spec"], "user_data": inputs.get("user_data", "")}
        tags = [*own.get("tags", ()), {"key": TAG, "value": inputs["mark"]}]
        return self._client().launch({**own, "tags": tags}, for_s=AGAIN_S), {}

    def observed(self, found: Row, state: State) -> State:
        status = "unhealthy" if found["status"] == "unhealthy" else "active"
        return {"status": status} if "status" in state else {}


class LambdaGang(GangHandler[LambdaClient]):
    """`instances`: node -> its id. One that failed has none: of a fleet that keeps what it got the engine
    goes on without it."""

    def wait(self, instances: Mapping[str, str]) -> State:
        there = {node: each for node, each in instances.items() if each}
        found = until_active(self._client(), there, self._pause_s)
        return {
            node: {"id": row["id"], "address": row["private_ip"], "public": row["ip"]}
            for node, row in found.items()
        }


def until_active(client: LambdaClient, instances: Mapping[str, str], pause_s: float) -> dict[str, Row]:
    """Wait until all of these are active: what they are, by node.

    Raises LambdaRefused as soon as one of them does not come up: the others are of no use alone.
    """

    def look() -> dict[str, Row]:
        known = {str(row["id"]): row for row in client.all(INSTANCE)} if instances else {}
        found: dict[str, Row] = {}
        for node, resource in instances.items():
            row = known.get(resource) or client.get(INSTANCE, resource)
            if row is None or row["status"] == "unhealthy":
                what = "is not there any more" if row is None else "is unhealthy"
                raise LambdaRefused(f"bring {node} up", "transient", f"the instance {resource} {what}")
            if row["status"] == "active" and row.get("ip") and row.get("private_ip"):
                found[node] = row
        return found

    def late(names: str) -> LambdaRefused:
        message = f"{names} are not active after {UP_S / 60:.0f} minutes"
        return LambdaRefused("bring the instances up", "transient", message)

    return wait_for_all(instances, look, late, for_s=UP_S, pause_s=pause_s)


HANDLERS: Mapping[str, type[LambdaHandler] | type[FirewallHandler]] = {
    "SshKey": SshKeyHandler,
    "FileSystem": FileSystemHandler,
    "FirewallRules": FirewallHandler,
    "Instance": InstanceHandler,
}


class LambdaProvider(AccountProvider[LambdaClient]):
    """The resources of an account. `connect`: the client of a login."""

    def __init__(
        self,
        connect: Callable[[Login], LambdaClient] = LambdaClient,
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        def handlers(account: Callable[[], LambdaClient]) -> dict[str, Handler]:
            of_kinds: dict[str, Handler] = {
                f"{PACKAGE}:index:{name}": handler(account, pause_s=pause_s, settle_s=settle_s)
                for name, handler in HANDLERS.items()
            }
            return {**of_kinds, GANG: LambdaGang(account, pause_s=pause_s)}

        def log_in(parts: Mapping[str, str]) -> LambdaClient:
            return connect(Login(**{part: parts.get(part, "") for part in PARTS}))

        super().__init__(handlers, log_in, parts=PARTS, gang=GANG)


def main() -> None:
    """Serve until the engine ends."""
    serve(LambdaProvider(), NAME)


if __name__ == "__main__":
    main()
