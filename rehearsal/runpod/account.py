"""One simulated RunPod account: an API key, pods, Instant Clusters, network volumes, a balance and a spend
limit."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar

from orch.rehearsal.http_service import HttpAccount, Request, Routes
from orch.rehearsal.machines import PodContainer, SimulatedMachine
from orch.rehearsal.runpod.api import errors
from orch.rehearsal.runpod.api.errors import RunpodError
from orch.rehearsal.runpod.api.pods import stopped
from orch.rehearsal.runpod.api.routes import route
from orch.rehearsal.scenario import NodeScenario
from orch.rehearsal.store import Doc

KINDS = ("pod", "cluster", "network-volume")


class RunpodCloud(HttpAccount):
    """A RunPod account in a file. Knobs: capacity of `GPU@DATA CENTER` in pods; quotas `spendLimit` and
    `clientBalance` in dollars."""

    name: ClassVar[str] = "runpod"
    answer_headers: ClassVar[Mapping[str, str]] = {
        "RateLimit-Policy": '"minute";q=60;w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400'
    }
    hidden: ClassVar[frozenset[str]] = frozenset({"env"})
    errors: ClassVar[ModuleType] = errors
    routes: ClassVar[Routes] = route
    shows_instances: ClassVar[frozenset[str]] = frozenset({"listPods", "getPod", "listClusterPods"})

    @property
    def api_key(self) -> str:
        return f"rpa_{self.seed}_REHEARSAL"

    # -- calls --------------------------------------------------------------------------------------------

    def check_caller(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        kind, _, key = headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or not key:
            raise RunpodError(401, "missing bearer token")
        if key != self.api_key:
            raise RunpodError(401, "invalid API key")

    # -- behind the back ----------------------------------------------------------------------------------

    def shut_down(self, instance: str) -> None:
        self.end_container(instance)

    def lose_pod(self, pod: str) -> None:
        """A pod is no more, of a cluster too: RunPod itself took it away."""
        with self.store.transaction():
            self.store.remove(pod)
            self.note("dead", pod)
        self.follow_behind_the_back()

    def end_container(self, pod: str, status: str = "EXITED") -> None:
        """The container of a pod ends by itself; `ERROR`: its host is broken."""
        with self.store.transaction():
            doc = self.store.get(pod, "pod")
            if doc is not None:
                stopped(Request(self, "", pod, {}, None), doc, status)
        self.follow_behind_the_back()

    # -- what a test may ask ------------------------------------------------------------------------------

    def instances(self, region: str | None = None) -> dict[str, Doc]:
        """Pods by id, those of clusters too."""
        return self.things("pod", region)

    def everything(self) -> dict[str, str]:
        return self.created_resources(KINDS, unless=lambda doc: False)

    # -- local nodes: a container for each pod that runs --------------------------------------------------

    def see_local_nodes(self) -> None:
        """Pods are not machines that power off by themselves."""

    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        from orch.rehearsal.nodes import disks

        super().update_local_nodes(scenario, action, result)
        if action == "deleteNetworkVolume":
            disks.remove_volumes(self, but=self.things("network-volume"))

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, "pod")
        if doc is None or doc["status"] != "RUNNING":
            return None
        return SimulatedMachine(
            instance=instance,
            slug=instance,
            hostname=f"node-{doc['_rank']}" if "cluster" in doc else instance,
            type=doc["_gpu"],
            user_data=b"",
            placeholders=(),
            pod=PodContainer(
                doc["image"],
                doc["args"] or "",
                {**_environment(doc), **doc["env"]},
                {each["volumeId"]: each["path"] for each in doc["mounts"].get("network", ())},
            ),
        )


def _environment(pod: Doc) -> dict[str, str]:
    """What RunPod sets in a pod. Source: pods/templates/environment-variables.mdx, and for clusters
    instant-clusters/configuration.mdx."""
    known = {
        "RUNPOD_POD_ID": pod["id"],
        "RUNPOD_DC_ID": pod["dataCenterId"],
        "RUNPOD_GPU_COUNT": str(pod["gpu"]["count"]),
        "RUNPOD_API_KEY": f"rpa_{pod['id']}_POD",
    }
    if "cluster" in pod:
        first = "10.65.0.2"
        known |= {
            "PRIMARY_ADDR": first,
            "MASTER_ADDR": first,
            "PRIMARY_PORT": "29400",
            "MASTER_PORT": "29400",
            "NODE_ADDR": f"10.65.0.{pod['_rank'] + 2}",
            "NODE_RANK": str(pod["_rank"]),
            "NUM_NODES": str(pod["_count"]),
            "NUM_TRAINERS": str(pod["gpu"]["count"]),
            "HOST_NODE_ADDR": f"{first}:29400",
            "WORLD_SIZE": str(pod["_count"] * pod["gpu"]["count"]),
        }
    return known
