"""A RunPod fleet as Pulumi resources: the plan, one to one. Decides nothing.

Two resources for each run that has pods: what is made by one call, and what waits until it is ready. Both
bear the mark of that run's making, by which they are removed when it has ended.

A pod has the job's own image, and its cloud starts no SSH server in it. `bootstrap` is the shell text that
does, as its first process; `arguments` and `docker_arguments` are the forms in which such clouds take a
command.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pulumi

from orch.components.cloud.machines.host_keys import private_host_key, public_host_key
from orch.components.resources import Keys
from orch.components.runpod.explain import CLUSTER, PACKAGE, POD, READY
from orch.components.runpod.plan import HIDDEN, PodGroup, RunpodPlan
from orch.spec.state import SCHEMA
from orch.templates import render

if TYPE_CHECKING:
    from orch.components.request import PlanRequest
    from orch.components.runpod.backend import RunpodBackend

# A container that does not answer for minutes has ended, or its machine has.
UNREACHABLE_GRACE_S = 300.0


class RunpodResource(pulumi.CustomResource):
    """A pod or a cluster, or what waits for one: `machines` by node."""

    machines: pulumi.Output[dict[str, Any]]

    def __init__(self, kind: str, name: str, props: dict[str, Any], opts: pulumi.ResourceOptions) -> None:
        outputs = {"machines": None} if kind == READY else {}
        super().__init__(kind, name, {**props, **outputs}, opts)


class RunpodFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState, `identity` the client's private key (secret)."""

    state: pulumi.Output[dict[str, Any]]
    identity: pulumi.Output[str]

    def __init__(self, plan: RunpodPlan, key: str) -> None:
        super().__init__("orch:fleet:Runpod", plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan = plan
        self._mark = f"{pulumi.get_project()}/{pulumi.get_stack()}/{plan.scope}"
        own = pulumi.ResourceOptions(parent=self)
        self._keys = Keys(f"{plan.fleet}-keys", opts=own)
        config = {"key": pulumi.Output.secret(key)}
        provider = pulumi.ProviderResource(PACKAGE, f"{plan.fleet}-runpod", config, own)
        self._opts = pulumi.ResourceOptions(parent=self, provider=provider)
        machines = [self._group(group) for group in plan.groups]
        self.identity = self._keys.client_private_key
        self.state = self._state(machines)
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    def _group(self, group: PodGroup) -> pulumi.Output[dict[str, Any]]:
        """The pods of one run; what RunPod assigned to each node."""
        name = group.name(self._plan.fleet)
        made = RunpodResource(
            CLUSTER if group.cluster else POD,
            name,
            {
                "name": name,
                "mark": self._mark,
                "made_for": group.made_for,
                "spec": dict(group.spec),
                "args": self._first_command(group),
                "status": "running",
            },
            self._opts,
        )
        nodes = [node.name for node in group.nodes(self._plan.fleet)]
        which = {"cluster": made.id, "nodes": nodes} if group.cluster else {"pods": {nodes[0]: made.id}}
        ready = {"name": name, "made_for": group.made_for, **which}
        return RunpodResource(READY, f"{name}-ready", ready, self._opts).machines

    def _first_command(self, group: PodGroup) -> pulumi.Output[str]:
        """What has the pods let orch in: one host key for those that are made by one call."""
        name = group.name(self._plan.fleet)

        def fill(keys: Sequence[str]) -> str:
            seed, own = keys
            authorized = (own, *self._plan.authorized_keys)
            text = bootstrap(
                authorized, host_key=private_host_key(seed, name), image=group.image, hidden=HIDDEN
            )
            return arguments(text)

        both = pulumi.Output.all(self._keys.host_seed, self._keys.client_public_key)
        return pulumi.Output.secret(both.apply(fill))

    # The FleetState, in one output.

    def _state(self, machines: Sequence[pulumi.Output[dict[str, Any]]]) -> pulumi.Output[dict[str, Any]]:
        plan, stack = self._plan, pulumi.get_stack()

        def assemble(values: Sequence[Any]) -> dict[str, Any]:
            seed, found = values[0], {name: each for one in values[1:] for name, each in (one or {}).items()}
            nodes = [
                self._node(group, node.index, node.name, found[node.name], seed)
                for group in plan.groups
                for node in group.nodes(plan.fleet)
                if node.name in found
            ]
            return {
                "schema_version": SCHEMA,
                "name": plan.fleet,
                "stack": stack,
                "backend": "runpod",
                "placement": plan.placement,
                "interconnect": plan.interconnect,
                "unreachable_grace_s": UNREACHABLE_GRACE_S,
                "image": plan.job_image,
                "env": dict(plan.env),
                "nodes": sorted(nodes, key=lambda node: node["index"]),
            }

        values = pulumi.Output.all(self._keys.host_seed, *machines)
        return pulumi.Output.unsecret(values.apply(assemble))

    def _node(
        self, group: PodGroup, index: int, name: str, machine: Mapping[str, Any], seed: str
    ) -> dict[str, Any]:
        made_by = group.name(self._plan.fleet)
        return {
            "index": index,
            "name": name,
            "address": machine["host"],
            "port": machine["port"],
            "user": machine["user"],
            "host_key": public_host_key(seed, made_by),
            "machine": machine["id"],
            "internal_ip": machine.get("address"),
            "cpus": group.cpus,
            "memory_mib": group.memory_mib,
            "disk_mib": group.disk_gb * 1024,
            "gpus": dict(group.gpus),
            "arch": "x86",
            "region": machine["data_center"],
            "instance_type": group.instance_type,
            "price_hourly": machine["hourly"],
            "made_by": made_by,
            "made_for": group.made_for,
            "runtime": "process",
        }


def register(
    backend: RunpodBackend, request: PlanRequest, plan: RunpodPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    component = RunpodFleet(plan, backend.login(request).key)
    return component.state, component.identity


_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n]*)?")


def bootstrap(
    authorized_keys: Sequence[str],
    *,
    host_key: str | None = None,
    image: str | None = None,
    hidden: Sequence[str] = (),
    port: int = 22,
) -> str:
    """POSIX sh text for PID 1 of a pod, as root: installs what is missing, runs sshd, never ends.

    `authorized_keys`: public keys of who may log in as root. `host_key`: the private host key as OpenSSH's
    file (`host_keys.private_host_key`); it can be read where the cloud shows a pod's command. Without one the
    pod makes its own, and says `orch: host key ssh-ed25519 AAAA…` in its log. `image`: the pod's, so that a
    run that asks for another is refused. `hidden`: names of variables of the pod that no job gets.
    Raises ValueError for what is no public key.
    """
    for key in authorized_keys:
        if not _PUBLIC_KEY.fullmatch(key.strip()):
            raise ValueError("authorized_keys takes public keys, one a line, as in a .pub file")
    return render(
        "pod-bootstrap.sh.j2",
        authorized=[key.strip() for key in authorized_keys],
        host_key=host_key or "",
        image=image or "",
        hidden="|".join(hidden),
        port=port,
    )


def arguments(text: str) -> str:
    """`text` as the one string of a container's command, without a character that who splits it could expand.

    It reaches an image's entrypoint as its arguments; one that does not run them swallows it.
    """
    return f"sh -c '{_first(text)}'"


def docker_arguments(text: str) -> str:
    """`text` as the JSON that replaces an image's entrypoint too.

    Source: dstack runpod/compute.py, `dockerArgs` of RunPod's GraphQL; not documented for its REST v2.
    """
    return json.dumps({"cmd": [_first(text)], "entrypoint": ["/bin/sh", "-c"]})


def _first(text: str) -> str:
    """Has `text` run from a file: what `ps` shows of the first process must not have the host key."""
    code = base64.b64encode(text.encode()).decode()
    file = "/var/lib/orch/first.sh"
    return f"mkdir -p {file.rpartition('/')[0]}; (umask 077; echo {code} | base64 -d >{file}); exec sh {file}"
