"""Serves RunPod's resources to the Pulumi engine: the executable `pulumi-resource-orch-runpod`.

Pods, Instant Clusters and network volumes. It is configured with the API key, which the state keeps as a
secret.

RunPod has no idempotency key, no labels, and names need not be unique: the name is all that tells whose
something is. It bears the stack's mark, and a digest of what was asked for (`cloud_name`). A create
looks for it first; where its answer was lost, it looks for a while before it calls again. The id is
returned as soon as RunPod has said it, so that it is recorded before anything is waited for; `ReadyHandler`
waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from pulumi.provider.experimental import provider as api

from orch.components.cloud.rest.handler import KindHandler
from orch.components.cloud_errors import Category
from orch.components.marks.marked import cloud_name
from orch.components.runpod.account.client import CLUSTER, POD, VOLUME, Kind, Login, Row, RunpodClient
from orch.components.runpod.account.errors import RunpodRefused
from orch.components.runpod.explain import PACKAGE
from orch.providers.orch.handler import OBSERVED, Handler, Inputs, ProviderError, State
from orch.providers.orch.serving import HandlerProvider, serve
from orch.providers.orch.values import plain_map, sendable

NAME = f"pulumi-resource-{PACKAGE}"

AGAIN_S = 300.0
"""How long something may be in use by what is just being deleted, or RunPod may ask to come back later."""

SETTLE_S = 45.0
"""How long what a create made without an answer may take to be listed."""

UP_S = 1200.0
"""How long pods may take to be ready: images of tens of gigabytes are pulled. Source: dstack's time-out, 20
min."""

PAUSE_S = 5.0
"""Between two looks: an account may have 60 calls a minute."""

DOWN = ("EXITED", "ERROR", "TERMINATED")


class RunpodHandler(KindHandler[RunpodClient]):
    """Resources of one kind. Inputs: `name`, `mark` (whose it is), `spec` (the body of its create, without
    a name), and what of that body no plan may show: `args`, the first command of a pod. Of a pod that is
    there another one is no change. `made_for`: the mark of the run that it is made for. `status`: it is to
    run. That it has ended is told as drift, and nothing follows from it: its run ends."""

    tools: ClassVar[frozenset[str]] = frozenset({"args", "status"})

    def __init__(
        self,
        kind: Kind,
        client: Callable[[], RunpodClient],
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(client, pause_s=pause_s, settle_s=settle_s)
        self.kind = kind

    def create(self, inputs: Inputs) -> tuple[str, State]:
        found = self.own(inputs)
        return (self._make(inputs) if found is None else found), {OBSERVED: {}}

    def delete(self, resource_id: str, state: State) -> None:
        """Until it is gone, for what it stands on is deleted next, and whatever came late by its name."""
        left, end = resource_id, time.monotonic() + AGAIN_S
        while True:
            try:
                self._client().delete(self.kind, left)
                if self._client().get(self.kind, left) is None:
                    late = self._late(state)
                    if late is None:
                        return
                    left = late
            except RunpodRefused as refused:
                if refused.category not in ("conflict", "transient", "rate") or time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise ProviderError(
                    f"the {self.kind.words} {left} is still there",
                    hint="run `orch down` again",
                    code="ORCH359",
                )
            time.sleep(self._pause_s)

    def remove(self, resource_id: str) -> None:
        self.delete(resource_id, {})

    # -- by name ------------------------------------------------------------------------------------------

    def _late(self, state: State) -> str | None:
        """What is there still by the name of a resource that was deleted: nobody knows it, and it costs."""
        return self.own(state) if {"name", "mark", "spec"} <= state.keys() else None

    def begin(self, inputs: Inputs) -> tuple[str, State]:
        args = {"args": inputs["args"]} if inputs.get("args") else {}
        body = {"name": self.name_of(inputs), **inputs["spec"], **args}
        return self._client().create(self.kind, body), {}

    def _make(self, inputs: Inputs) -> str:
        """The id of a new one. Where no answer came it may be there: it is looked for before another call."""
        end = time.monotonic() + AGAIN_S
        while True:
            try:
                return self.begin(inputs)[0]
            except RunpodRefused as refused:
                if refused.category not in ("transient", "rate") or time.monotonic() >= end:
                    raise
                unknown = refused.category == "transient"
                pause = refused.retry_after_s or self._pause_s
            settled = time.monotonic() + (self._settle_s if unknown else 0.0)
            while True:
                time.sleep(min(pause, AGAIN_S))
                if (found := self.own(inputs)) is not None:
                    return found
                if time.monotonic() >= settled:
                    break


class PodHandler(RunpodHandler):
    """Single pods."""

    def observed(self, found: Row, state: State) -> State:
        return {"status": "stopped" if found["status"] in DOWN else "running"}


class ClusterHandler(RunpodHandler):
    """Instant Clusters: all pods by one call. RunPod replaces none of them."""

    def observed(self, found: Row, state: State) -> State:
        statuses: Mapping[str, int] = found["pods"]["byStatus"]
        running, asked = statuses.get("RUNNING", 0), found["compute"]["podCount"]
        # Those of a cluster that is being made may be listed one after the other.
        lost = 0 < running == found["pods"]["total"] < asked
        down = any(statuses.get(each) for each in DOWN)
        return {"status": f"{running} of {asked} pods running" if lost or down else "running"}


class VolumeHandler(RunpodHandler):
    """Network volumes: they grow in place, and hold data. Of several by one name none is chosen, and none
    deleted."""

    def name_of(self, inputs: Inputs) -> str:
        return cloud_name(inputs["name"], inputs["mark"])

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        """Whether anything but a growing size changes."""
        if key != "spec" or not isinstance(old, Mapping) or not isinstance(new, Mapping):
            return True
        others = {name for name in {*old, *new} if old.get(name) != new.get(name)} - {"size"}
        return bool(others) or new["size"] < old["size"]

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        self._client().update(self.kind, resource_id, {"size": inputs["spec"]["size"]})
        return {OBSERVED: {}}

    def _late(self, state: State) -> str | None:
        return None

    def own(self, inputs: Inputs) -> str | None:
        name, center = self.name_of(inputs), inputs["spec"]["dataCenter"]
        found = self._client().named(self.kind, name)
        if not found:
            return None
        if len(found) > 1 or found[0]["dataCenter"] != center:
            places = ", ".join(f"{each['id']} in {each['dataCenter']}" for each in found)
            raise ProviderError(
                f"there is a network volume {name} already, and not as it is wanted",
                where=places,
                detail=f"wanted: one in {center}",
                hint="look whether its data is needed, then delete it in RunPod's console: Storage",
                code="ORCH357",
            )
        return str(found[0]["id"])


class _Ended(RunpodRefused):
    """A pod that is waited for has ended, or was taken away: what its cluster has besides is of no use."""

    def __init__(self, what: str, meaning: Category, message: str) -> None:
        super().__init__(what, meaning, message)
        self.what, self.message = what, message


class ReadyHandler:
    """Pods that are waited for together: a gang in one resource, asked for by one call a look where it is a
    cluster.

    Inputs: `name`; `cluster` (its id) with `nodes` (their names by rank), or `pods` (node -> id).
    `machines`: what RunPod assigned to each node. What ends before it was ever ready is deleted: the next
    try finds it gone, and makes it anew.
    """

    computed: ClassVar[frozenset[str]] = frozenset({"machines"})
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        pods: RunpodHandler,
        clusters: RunpodHandler,
        client: Callable[[], RunpodClient],
        *,
        pause_s: float = PAUSE_S,
        up_s: float = UP_S,
    ) -> None:
        self._pods, self._clusters, self._client = pods, clusters, client
        self._pause_s, self._up_s = pause_s, up_s

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        failures = [] if inputs.get("name") else [("name", "must be set")]
        if bool(inputs.get("cluster")) == bool(inputs.get("pods")):
            failures.append(("pods", "exactly one of `cluster` and `pods` must be set"))
        if inputs.get("cluster") and not inputs.get("nodes"):
            failures.append(("nodes", "must be set"))
        return failures

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return key == "name"

    def create(self, inputs: Inputs) -> tuple[str, State]:
        try:
            return inputs["name"], self._wait(inputs)
        except _Ended as ended:
            self._delete(inputs, ended)
            raise

    def read(self, resource_id: str, state: State) -> State | None:
        return {"machines": state["machines"]}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return self._wait(inputs)

    def delete(self, resource_id: str, state: State) -> None:
        """Nothing of it is in the cloud."""

    def _delete(self, inputs: Inputs, ended: _Ended) -> None:
        """All that is waited for. Raises RunpodRefused with both reasons where RunPod does not let it go."""
        try:
            if inputs.get("cluster"):
                self._clusters.delete(inputs["cluster"], {})
            for pod in (inputs.get("pods") or {}).values():
                self._pods.delete(pod, {})
        except RunpodRefused as refused:
            message = f"{ended.message}; and it cannot be deleted: {refused.detail}"
            raise RunpodRefused(ended.what, refused.category, message) from refused

    def _wait(self, inputs: Inputs) -> State:
        """Raises RunpodRefused as soon as one of them ends: the others are of no use alone."""
        end, most = time.monotonic() + self._up_s, 0
        while True:
            found = self._look(inputs)
            if len(found) < most:
                message = f"there were {most} pods, and are {len(found)}"
                raise _Ended("bring the pods up", "gone", message)
            most = len(found)
            expected = inputs["nodes"] if inputs.get("cluster") else list(inputs["pods"])
            if len(found) == len(expected) and all(_ready(pod) for pod in found.values()):
                return {"machines": {node: _assigned(pod) for node, pod in found.items()}}
            if time.monotonic() >= end:
                late = [
                    f"{node} ({_lacks(found.get(node))})" for node in expected if not _ready(found.get(node))
                ]
                message = f"{', '.join(late[:8])}: not ready after {self._up_s / 60:.0f} minutes"
                raise RunpodRefused("bring the pods up", "transient", message)
            time.sleep(self._pause_s)

    def _look(self, inputs: Inputs) -> dict[str, Row]:
        """Node -> its pod; one that has no rank yet stands for whichever node is left."""
        if inputs.get("cluster"):
            found = _by_rank(inputs["cluster"], inputs["nodes"], self._client().members(inputs["cluster"]))
        else:
            found = {}
            for node, resource in inputs["pods"].items():
                pod = self._client().get(POD, resource)
                if pod is None:
                    raise RunpodRefused(f"bring {node} up", "gone", f"the pod {resource} was deleted")
                found[node] = pod
        for node, pod in found.items():
            if pod["status"] in DOWN:
                message = f"the pod {pod['id']} is {pod['status'].lower()}"
                raise _Ended(f"bring {node} up", "transient", message)
        return found


def _by_rank(cluster: str, nodes: Sequence[str], members: Sequence[Row] | None) -> dict[str, Row]:
    """Node -> its pod, as far as there are pods: RunPod may list them one after the other."""
    if members is None:
        raise RunpodRefused("bring the pods up", "gone", f"the Instant Cluster {cluster} was deleted")
    ranked = {pod["cluster"]["rank"]: pod for pod in members if pod["cluster"]["rank"] is not None}
    others = iter([pod for pod in members if pod["cluster"]["rank"] is None])
    found = {node: ranked.get(rank) or next(others, None) for rank, node in enumerate(nodes)}
    return {node: pod for node, pod in found.items() if pod is not None}


def _lacks(pod: Row | None) -> str:
    """What a pod that is not ready is, or has not."""
    if pod is None:
        return "no pod yet"
    return f"{pod['status'].lower()}{'' if pod['ssh']['direct'] else ', no port 22'}"


def _ready(pod: Row | None) -> bool:
    """Whether commands can be sent to it: it runs, its port 22 is reachable, and it has its place in the
    cluster. That sshd runs is for who connects to find."""
    if pod is None:
        return False
    member = pod.get("cluster")
    placed = member is None or (member["rank"] is not None and bool(member.get("ip")))
    return pod["status"] == "RUNNING" and pod["ssh"]["direct"] is not None and placed


def _assigned(pod: Row) -> State:
    """What a node's state needs of a pod. `address`: in the cluster, None for a single pod; the engine drops
    it then."""
    direct, member = pod["ssh"]["direct"], pod.get("cluster")
    return {
        "id": pod["id"],
        "address": None if member is None else member["ip"],
        "host": direct["host"],
        "port": direct["port"],
        "user": direct["username"],
        "data_center": pod["dataCenterId"],
        "hourly": pod["cost"],
    }


class RunpodProvider(HandlerProvider):
    """Dispatches each request to the handler of its type. `connect`: the client of a login."""

    def __init__(
        self,
        connect: Callable[[Login], RunpodClient] = RunpodClient,
        *,
        pause_s: float = PAUSE_S,
        settle_s: float = SETTLE_S,
        up_s: float = UP_S,
    ) -> None:
        self._connect = connect
        self._client: RunpodClient | None = None
        pods = PodHandler(POD, self._account, pause_s=pause_s, settle_s=settle_s)
        clusters = ClusterHandler(CLUSTER, self._account, pause_s=pause_s, settle_s=settle_s)
        handlers: dict[str, Handler] = {
            "Pod": pods,
            "Cluster": clusters,
            "NetworkVolume": VolumeHandler(VOLUME, self._account, pause_s=pause_s, settle_s=settle_s),
            "Ready": ReadyHandler(pods, clusters, self._account, pause_s=pause_s, up_s=up_s),
        }
        by_type = {f"{PACKAGE}:index:{name}": each for name, each in handlers.items()}
        super().__init__(by_type.__getitem__)

    def _account(self) -> RunpodClient:
        assert self._client is not None  # the engine configures a provider before it asks for a resource
        return self._client

    async def check_config(self, request: api.CheckRequest) -> api.CheckResponse:
        return api.CheckResponse(inputs=sendable(request.new_inputs))

    async def diff_config(self, request: api.DiffRequest) -> api.DiffResponse:
        """Another key leads to the same resources."""
        changed = plain_map(request.old_state).get("key") != plain_map(request.new_inputs).get("key")
        return api.DiffResponse(changes=changed, diffs=["key"] if changed else [])

    async def configure(self, request: api.ConfigureRequest) -> api.ConfigureResponse:
        self._client = self._connect(Login(str(plain_map(request.args).get("key") or "")))
        return api.ConfigureResponse(
            accept_secrets=True, supports_preview=True, accept_resources=True, accept_outputs=True
        )


def main() -> None:
    """Serve until the engine ends."""
    serve(RunpodProvider(), NAME)


if __name__ == "__main__":
    main()
