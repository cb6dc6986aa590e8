"""Resources that fleets of several backends have: keys, and fleets whose machines our providers serve."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import pulumi

from orch.components.cloud.machines.cloudinit import filled, filled_for
from orch.components.cloud.machines.fleet_state import (
    Route,
    bastion_jump,
    fleet_state,
    given_jumps,
    node_state,
)
from orch.components.cloud.machines.host_keys import HostKey, public_host_key
from orch.components.cloud.plan import CloudPlan, Node
from orch.components.cloud.polling import in_background
from orch.components.file_systems import FileSystem

if TYPE_CHECKING:
    from orch.components.request import PlanRequest


class Keys(pulumi.CustomResource):
    """`orch:index:Keys`: the client's key pair and the seed of the host keys."""

    client_private_key: pulumi.Output[str]
    client_public_key: pulumi.Output[str]
    host_seed: pulumi.Output[str]

    def __init__(self, name: str, *, opts: pulumi.ResourceOptions) -> None:
        props = {"name": name, "client_private_key": None, "client_public_key": None, "host_seed": None}
        super().__init__("orch:index:Keys", name, props, opts)


def common_user_data(
    plan: Any,
    file_systems: Sequence[FileSystem],
    keys: Keys,
    sources: Sequence[pulumi.Input[str]],
    wrap: Callable[[str], str],
) -> pulumi.Output[str]:
    """The user data of all nodes of a group. It holds no key but the client's public one; what the file's
    `init` has may be secret.

    `plan`: of the group; `file_systems`: those of the fleet's own, `sources`: what each is mounted from.
    """

    def fill(values: Sequence[Any]) -> str:
        key, known_sources = values
        mounted = list(zip(file_systems, known_sources, strict=True))
        return wrap(filled(plan.cloud_init, authorized_key=key, file_systems=mounted))

    user_data = pulumi.Output.all(keys.client_public_key, sources).apply(fill)
    return pulumi.Output.secret(user_data) if plan.confidential else pulumi.Output.unsecret(user_data)


async def new_host_keys(
    new: Sequence[str], read: Callable[[Sequence[str]], Mapping[str, str]]
) -> Mapping[str, str]:
    """Read the host keys of new machines. Nobody logs in after a preview: it does not wait for machines that
    are booting."""
    if not new or pulumi.runtime.is_dry_run():
        return dict.fromkeys(new, "")
    return await in_background(partial(read, new))


# Fleets of clouds whose resources are served by a provider of ours: machines, and a gang that waits for them


class ServedResource(pulumi.CustomResource):
    """A resource of such a cloud. `computed` are its outputs beside its inputs."""

    machines: pulumi.Output[dict[str, Any]]
    operation: pulumi.Output[str]

    def __init__(
        self,
        kind: str,
        name: str,
        props: dict[str, Any],
        opts: pulumi.ResourceOptions,
        *,
        computed: Sequence[str] = (),
    ) -> None:
        super().__init__(kind, name, {**props, **dict.fromkeys(computed)}, opts)


Plan = TypeVar("Plan", bound=CloudPlan)


class ServedFleet(pulumi.ComponentResource, Generic[Plan]):
    """The whole fleet: a constant number of resources, one per node, and one that waits for all machines
    together. `state` is its FleetState, `identity` the client's private key (secret).

    `backend`: its name; `package`: the provider's; `grace_s`: how long a node that is not reached may be
    rebooting. A subclass makes what the nodes stand on and the machines (`make`).
    """

    backend: ClassVar[str]
    package: ClassVar[str]
    grace_s: ClassVar[float] = 300.0

    state: pulumi.Output[dict[str, Any]]
    identity: pulumi.Output[str]

    def __init__(self, plan: Plan, key: Mapping[str, str]) -> None:
        kind = f"orch:fleet:{self.backend.capitalize()}"
        super().__init__(kind, plan.fleet, None, pulumi.ResourceOptions(protect=plan.protect))
        self._plan = plan
        self._mark = f"{pulumi.get_project()}/{pulumi.get_stack()}/{plan.scope}"
        self._keys = Keys(f"{plan.fleet}-keys", opts=pulumi.ResourceOptions(parent=self))
        secrets = {name: pulumi.Output.secret(value) for name, value in key.items()}
        # Not every resource tells its region: rules over resources look for it here.
        config = {**secrets, "region": plan.region}
        own = pulumi.ResourceOptions(parent=self)
        provider = pulumi.ProviderResource(self.package, f"{plan.fleet}-{self.backend}", config, own)
        # Names are unique in an account: what replaces something comes after it.
        self._opts = pulumi.ResourceOptions(parent=self, provider=provider, delete_before_replace=True)
        machines = self.make()
        self.identity = self._keys.client_private_key
        gang = {"name": self.gang_name, "instances": {name: self.awaited(m) for name, m in machines.items()}}
        waiting = ServedResource(
            f"{self.package}:index:Gang", f"{plan.fleet}-gang", gang, self._opts, computed=("machines",)
        )
        self.state = self._state(waiting.machines)
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    @classmethod
    def register(
        cls, backend: Any, request: PlanRequest, plan: Plan
    ) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]:
        """See `Backend.register`."""
        component = cls(plan, backend.session(request).key)
        return component.state, component.identity

    @abstractmethod
    def make(self) -> dict[str, ServedResource]:
        """What the nodes stand on, and the machines by name, the bastion's too."""

    @abstractmethod
    def disk_gb(self, group: Plan) -> int:
        """The size of what jobs write to, on each node of a group."""

    def node_state_of(
        self, group: Any, node: Node, machine: Mapping[str, Any], seed: str, jumps: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The state of a node. `machine`: what the gang says of it."""
        return node_state(
            group,
            node,
            HostKey(public_host_key(seed, node.name), machine["id"]),
            Route(machine["public" if group.access == "direct" else "address"], machine["address"], jumps),
            topology=machine["topology"] if getattr(group, "rank_by_topology", False) else (),
            disk_gb=self.disk_gb(group),
            reservation=getattr(group, "reservation", None),
        )

    @property
    def gang_name(self) -> str:
        return f"orch-{self._plan.fleet}-{self._plan.scope}"

    def awaited(self, machine: ServedResource) -> Any:
        """What the gang is told of a machine: its id."""
        return untracked(machine.id)

    @property
    def bastion_name(self) -> str:
        return f"{self._plan.fleet}-bastion"

    def user_data(self, text: str, machine: str) -> pulumi.Output[str]:
        """The text of one machine, with the key of its own host alone: a secret."""

        both = pulumi.Output.all(self._keys.host_seed, self._keys.client_public_key)
        return pulumi.Output.secret(both.apply(lambda keys: filled_for(machine, text, *keys)))

    # The FleetState, in one output: an output for each value of a thousand nodes is slow.

    def _state(self, gang: pulumi.Output[dict[str, Any]]) -> pulumi.Output[dict[str, Any]]:
        plan, stack = self._plan, pulumi.get_stack()
        groups = {node.name: cast("Plan", group) for group in plan.node_groups for node in group.nodes}

        def assemble(values: Sequence[Any]) -> dict[str, Any]:
            seed, machines = values[0], values[1] or {}
            jumps = given_jumps(getattr(plan, "jumps", ()))
            if plan.bastion is not None and self.bastion_name in machines:
                jumps = [bastion_jump(plan, seed, machines[self.bastion_name]["public"], None)]
            nodes = [
                self.node_state_of(groups[node.name], node, machines[node.name], seed, jumps)
                for node in plan.all_nodes
                if node.name in machines
            ]
            return fleet_state(plan, stack, nodes, backend=self.backend, grace_s=self.grace_s)

        values = pulumi.Output.all(self._keys.host_seed, gang)
        return pulumi.Output.unsecret(values.apply(assemble))


def untracked(output: pulumi.Output[str]) -> pulumi.Output[str]:
    """The same value, through which nothing depends on its resource: a machine that ended itself is taken
    away alone."""
    value = cast("Awaitable[str]", output.future(with_unknowns=True))
    return pulumi.Output(set(), value, output.is_known(), output.is_secret())
