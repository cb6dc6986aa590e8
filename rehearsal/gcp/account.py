"""One simulated GCP account: any project, asked by the REST API of Compute Engine."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from orch.rehearsal.calls import IncomingCall, Refusal
from orch.rehearsal.gcp.api.errors import GcpError
from orch.rehearsal.gcp.api.methods import API, BEFORE, Method, Request, all_methods, operation, public
from orch.rehearsal.gcp.data.tables import types
from orch.rehearsal.machines import SimulatedMachine
from orch.rehearsal.nodes.account import AccountWithNodes
from orch.rehearsal.scenario import Failure, NodeScenario
from orch.rehearsal.store import Doc

KINDS = (
    "network",
    "subnetwork",
    "firewall",
    "router",
    "resource-policy",
    "instance-template",
    "instance-group-manager",
    "resize-request",
    "instance",
    "disk",
    "filestore-instance",
)


class GcpCloud(AccountWithNodes):
    """A GCP account in a file: any project id is one of its projects."""

    name: ClassVar[str] = "gcp"
    shows_instances: ClassVar[frozenset[str]] = frozenset(
        f"compute.instances.{verb}" for verb in ("get", "list", "aggregatedList")
    )

    # -- how it refuses -----------------------------------------------------------------------------------

    def denied_call(self, call: IncomingCall) -> GcpError:
        permission = call.aliases[0]
        return GcpError("forbidden", f"Required '{permission}' permission for '{call.params['path']}'")

    def injected_failure(self, failure: Failure, call: IncomingCall) -> GcpError:
        return GcpError(failure.code, failure.message)

    def throttled(self, call: IncomingCall) -> GcpError:
        return GcpError(
            "rateLimitExceeded",
            "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service "
            "'compute.googleapis.com'.",
        )

    def after_refusal(self, refusal: Refusal) -> None:
        pass

    # -- calls --------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        params: Doc | None = None,
        body: Doc | None = None,
        *,
        caller: str = "provider",
    ) -> tuple[int, Doc]:
        """One call of the REST API: (HTTP status, JSON of the response).

        `path` is relative to https://compute.googleapis.com/compute/v1/, or to that of another service.
        """
        bare = re.sub(r"^(https?://[^/]+)?/?((compute/)?v1/)?", "", path).strip("/")
        api_method, words = _method(method.upper(), bare.split("/"))
        request = Request(self, words, dict(params or {}), dict(body or {}))
        call = IncomingCall(
            service=api_method.service if api_method else "compute",
            action=api_method.id if api_method else f"{method.upper()} {bare}",
            region=request.location if api_method else "",
            caller=caller,
            params={
                "path": _target(bare, request),
                "params": request.params,
                "body": _without_secrets(request.body),
            },
            aliases=(api_method.permission,) if api_method else ("",),
        )
        try:
            return 200, public(self.perform(call, lambda: self._effect(api_method, bare, request)))
        except GcpError as error:
            if not error.in_operation or api_method is None or not api_method.mutates:
                return error.status, error.body()
            with self.store.transaction():
                return 200, public(operation(request, api_method.verb, _target(bare, request), error=error))

    def _effect(self, api_method: Method | None, path: str, request: Request) -> Doc:
        if api_method is None:
            raise GcpError("notFound", f"The requested URL /compute/v1/{path} was not found on this server.")
        for before in BEFORE:
            before(request)
        result = api_method.function(request)
        if not api_method.mutates:
            return result
        return operation(request, api_method.verb, result["selfLink"].removeprefix(API), thing=result)

    def shut_down(self, instance: str) -> None:
        from orch.rehearsal.gcp.api.compute.endings import shut_down

        with self.store.transaction():
            shut_down(self._at(instance), instance)

    def take_back(self, instance: str) -> None:
        """Compute Engine takes a spot instance back."""
        from orch.rehearsal.gcp.api.compute.endings import take_back

        with self.store.transaction():
            take_back(self._at(instance), instance)
            scenario = self.knobs_now().nodes
        if scenario is not None:
            self.update_local_nodes(scenario, "", {})

    def _at(self, instance: str) -> Request:
        """A request where an instance is, for what happens without a call."""
        return Request(self, {"project": instance.split("/")[1], "zone": instance.split("/")[3]}, {}, {})

    # -- behind the back ----------------------------------------------------------------------------------

    def add_reservation(
        self,
        name: str,
        zone: str,
        machine_type: str,
        count: int,
        *,
        project: str = "orch-rehearsal",
        specific: bool = True,
        policy: str | None = None,
        dense: bool = False,
    ) -> str:
        """A reservation that was made elsewhere; its path. It takes of the zone's capacity at once.

        `policy`: the placement policy that it was made with. `dense`: of a capacity that is placed densely,
        as those of Cluster Director are.
        """
        from orch.rehearsal.gcp.api.compute.reservations import add

        words = {"project": project, "zone": zone}
        with self.store.transaction():
            request = Request(self, words, {}, {})
            return add(request, name, machine_type, count, specific=specific, policy=policy, dense=dense)

    # -- what a test may ask ------------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        """Path -> kind of all that was made and is still there."""
        return self.created_resources(KINDS, unless=lambda doc: bool(doc.get("_given")))

    # -- local nodes --------------------------------------------------------------------------------------

    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        from orch.rehearsal.nodes import containers, disks

        with self.store.transaction():
            shown: list[tuple[str, str, bool]] = self.store.meta("shown") or []
            if shown:
                self.store.put_meta("shown", [])
        for instance, device, there in shown:
            # Source: Compute Engine documentation, "Symbolic links for disks": what Google's udev rules make.
            disk = disks.Disk(device, f"/dev/disk/by-id/google-{device}")
            if instance:
                disks.show_disk(self, scenario, instance, disk, there=there)
            else:  # the disk was deleted
                disks.remove_disks(self, device)
        containers.follow(self, scenario, lambda instance: self.request("DELETE", instance))

    def machine(self, instance: str) -> SimulatedMachine | None:
        with self.store.transaction():
            doc = self.store.get(instance, "instance")
        if doc is None or doc.get("_stopped"):
            return None
        items = {item["key"]: item["value"] for item in doc["metadata"].get("items") or ()}
        if not items.get("user-data"):
            return None
        kind = types()[doc["machineType"].rpartition("/")[2]]
        return SimulatedMachine(
            instance=instance,
            slug=f"{doc['name']}-{doc['id']}",
            hostname=doc["name"],
            type=kind.name,
            user_data=str(items["user-data"]).encode(),
            placeholders=kind.device_files(),
        )


def _method(http: str, words: list[str]) -> tuple[Method | None, dict[str, str]]:
    for one in all_methods():
        parameters = one.match(http, words)
        if parameters is not None:
            return one, parameters
    return None, {"project": words[1] if len(words) > 1 else ""}


def _target(path: str, request: Request) -> str:
    """The path of the resource of a request: the one it names, or the one it creates in a collection."""
    name = request.body.get("name")
    return f"{path}/{name}" if name and _is_collection(path) else path


def _is_collection(path: str) -> bool:
    """Whether a path is that of a collection: `projects/P/global/C`, `projects/P/zones/Z/C`, `…/C/name/D`."""
    words = path.split("/")[2:]
    return len(words) % 2 == (0 if words[0] == "global" else 1)


def _without_secrets(body: Doc) -> Doc:
    """A body without secrets: the values of metadata."""
    result: dict[str, Any] = {}
    for key, value in body.items():
        if key == "metadata" and isinstance(value, dict):
            result[key] = {**value, "items": [{"key": item.get("key")} for item in value.get("items") or ()]}
        else:
            result[key] = _without_secrets(value) if isinstance(value, dict) else value
    return result
