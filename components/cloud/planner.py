"""How a fleet of machines is planned at one place: the steps that all clouds share, once. Pure.

A cloud's planner is a subclass that fills in what is its own: what it finds wrong, what its nodes boot with,
its layout, pins and reasons, and the record that all of it becomes. No Pulumi, no clock, no chance: the same
fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from orch.catalog.fabrics import Fabric, fabric
from orch.catalog.records import Catalog
from orch.components import file_systems
from orch.components.cloud.candidates import CloudCandidate, place_reason
from orch.components.cloud.machines.cloudinit import bastion_config, first_boot_findings, first_boot_pins
from orch.components.cloud.machines.ssh_access import PRIVATE, network_of
from orch.components.cloud.node_groups import OtherGroups
from orch.components.cloud.plan import Bastion, CloudPlan, Node
from orch.components.cloud.sizing import blocks, budget_findings, fingerprint, gpus, user_data_findings
from orch.components.idleness import IdleRule, idle_rule
from orch.components.lifetime import Lifetime, lifetime
from orch.components.node_count import count_words, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.components.scratch import disk_scratch
from orch.runner.preparation.mounts import fleet_mounts
from orch.spec.findings import Finding, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.blocks import Scratch
from orch.templates import ShellText

Place = TypeVar("Place", bound=CloudCandidate)
Facts = TypeVar("Facts", bound="MachineFacts")
Plan = TypeVar("Plan", bound=CloudPlan)
Settings = TypeVar("Settings", bound=BackendSettings)


class MachineFacts(Protocol):
    """Facts of a cloud. `image`: the machine image of the nodes, None if it is missing."""

    @property
    def image(self) -> Any: ...


@dataclass(frozen=True)
class PlanContext(Generic[Settings]):
    """What a plan is made of besides the fleet.

    `settings`: the backend's entry of orch.yml. `scope`: six hex digits that tell one project's names from
    another's, used for a new stack only. `tags` are the project's; `scripts` the text of `init[].file`, by
    path. `indices`: the nodes to plan, None: as many as the file asks for; `other_groups`: the fleet's other
    nodes; `created`: when the fleet was, in seconds since the epoch. `network`: what the stack of shared
    networks has decided.
    """

    settings: Settings
    catalog: Catalog
    scope: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    other_groups: OtherGroups[Any, Any] = field(default_factory=OtherGroups[Any, Any])
    created: int = 0
    network: PriorState = field(default_factory=PriorState)


class Planner(ABC, Generic[Place, Facts, Plan, Settings]):
    """The plan of one fleet at one candidate.

    A value is computed once, when it is first asked for; a cloud overrides those that differ there.
    `backend`: its name; `title`: what people call the cloud; `most_user_data`: bytes of user data that it
    takes, with the source of the figure. `off`: the command by which a machine ends itself.
    """

    backend: ClassVar[str]
    title: ClassVar[str]
    most_user_data: ClassVar[int]
    off: ClassVar[ShellText] = ShellText("systemctl poweroff")

    def __init__(
        self,
        fleet: Fleet,
        candidate: Place,
        facts: Facts,
        previous: PriorState,
        context: PlanContext[Settings],
    ) -> None:
        self.fleet, self.candidate, self.facts = fleet, candidate, facts
        self.previous, self.context, self.settings = previous, context, context.settings
        self.block = network_of(fleet)
        self.indices = node_indices(fleet, previous) if context.indices is None else context.indices
        self.live = live_indices(previous) if candidate.kept else frozenset[int]()
        self.new = len(set(self.indices) - self.live)
        self.scope = previous.pins.get("scope", context.scope)

    def plan(self) -> Plan:
        """Return the plan. Raises PlanErrors with all that is wrong."""
        warnings = settle(
            [
                *self.findings(),
                *user_data_findings(self.title, self.user_data_size, self.most_user_data),
                *self.key_findings(),
                *first_boot_findings(self.previous, self.boot_pins, len(self.live)),
                *self.size_findings(),
                *self.budget_findings(),
                *self.last_findings(),
            ]
        )
        return self.record(self.fields() | {"warnings": warnings})

    # -- what is a cloud's own

    @abstractmethod
    def findings(self) -> Iterable[Finding]:
        """What is wrong with the place, the network, the image, the fabric, the capacity."""

    @cached_property
    def user_data_size(self) -> int:
        """Bytes of a node's user data as it travels, keys included."""
        raise NotImplementedError

    @cached_property
    def cloud_init(self) -> str:
        """The user data of all nodes, with marks for what is known later."""
        raise NotImplementedError

    @cached_property
    def layout_parts(self) -> tuple[object, ...]:
        """What only a new instance can have: a change of it replaces nodes."""
        raise NotImplementedError

    @abstractmethod
    def own_pins(self) -> Mapping[str, str]:
        """The decisions of this cloud that must survive."""

    @abstractmethod
    def own_reasons(self) -> Iterable[str]:
        """The reasons of this cloud, in the order in which a reviewer reads them."""

    @abstractmethod
    def record(self, fields: dict[str, Any]) -> Plan:
        """Return the plan of this cloud. `fields`: those of CloudPlan."""

    def fabric_reasons(self) -> Iterable[str]:
        """What jobs get of the interconnect."""
        return self.fabric.words() if self.fabric else ()

    def own_costs(self) -> Iterable[str]:
        """Yield what costs money beside nodes and bastion, and has no price here."""
        return ()

    def key_findings(self) -> Iterable[Finding]:
        """Whether the host keys that new nodes show may be read."""
        return ()

    def size_findings(self) -> Iterable[Finding]:
        """Whether disks and groups hold what they must."""
        return ()

    def last_findings(self) -> Iterable[Finding]:
        return ()

    @cached_property
    def whole(self) -> bool:
        """Whether the fleet comes up with all of its nodes or with none."""
        return self.fleet.gang == "all-or-nothing"

    @cached_property
    def idle(self) -> IdleRule | None:
        """When nodes above the minimum end themselves."""
        return idle_rule(self.fleet)

    @cached_property
    def ending(self) -> Lifetime | None:
        """When all machines of the fleet end."""
        return lifetime(self.fleet, self.context.created)

    @cached_property
    def ending_stamp(self) -> str:
        """The part of the end that is given to a node at its first boot."""
        return self.ending.stamp if self.ending else ""

    @cached_property
    def interconnect(self) -> str:
        return "ethernet"

    @cached_property
    def bastion(self) -> Bastion | None:
        return None

    @cached_property
    def bastion_leads_to(self) -> Sequence[str]:
        """The networks of nodes that a bastion may lead to."""
        return PRIVATE

    @cached_property
    def bastion_init(self) -> str:
        """The user data of the bastion."""
        return bastion_config(self.fleet.name, self.bastion_leads_to, self.ending_script)

    @cached_property
    def place_words(self) -> str:
        return self.candidate.words

    @cached_property
    def price(self) -> float | None:
        """US dollars an hour of a node, None where it is not known or paid otherwise."""
        return self.candidate.price

    @cached_property
    def created_file_systems(self) -> tuple[file_systems.FileSystem, ...]:
        return ()

    @cached_property
    def file_system_place(self) -> str:
        """Where file systems are that are created with the fleet."""
        return ""

    @cached_property
    def node_scratch(self) -> Scratch | None:
        """Use of the local disks, None if they are left alone."""
        return None

    @cached_property
    def scratch(self) -> Mapping[str, str | bool] | None:
        """The record of the local disks."""
        return disk_scratch(self.fleet, self.node_scratch)

    def node_facts(self) -> dict[str, str | int | bool | None]:
        """What a node's state tells of its accelerators."""
        return {**gpus(self.candidate.type)}

    @cached_property
    def unpriced_nodes(self) -> str | None:
        """Nodes as people call them, if the price of theirs is not known; else None."""
        return "nodes" if self.price is None else None

    # -- what follows from it

    @cached_property
    def image(self) -> Any:
        """The machine image of the nodes."""
        if self.facts.image is None:
            raise AssertionError("an image that is missing is an error")
        return self.facts.image

    @cached_property
    def ranked(self) -> bool:
        """True if ranks follow the network topology, as far as the cloud shows it."""
        return self.fleet.topology == "rank-ordered"

    @cached_property
    def confidential(self) -> bool:
        """True if user data may hold secrets of the file."""
        return bool(self.fleet.init or any(mount.options for mount in self.fleet.mounts))

    @cached_property
    def idle_script(self) -> str | None:
        """The script by which a node ends itself when no job is on it."""
        return self.idle.script(self.off) if self.idle else None

    @cached_property
    def ending_script(self) -> str | None:
        """The script by which a machine ends itself when the fleet's time is over."""
        return self.ending.script(self.off) if self.ending else None

    def unpriced(self) -> Iterator[str]:
        """Yield what costs money, and has no price here."""
        if self.unpriced_nodes:
            yield self.unpriced_nodes
        if self.bastion is not None and self.bastion.price is None:
            yield "bastion"
        yield from self.own_costs()

    @cached_property
    def boot_pins(self) -> dict[str, str]:
        return first_boot_pins(self.fleet, self.context.scripts, self.idle, self.ending_stamp)

    @cached_property
    def layout(self) -> str:
        return fingerprint(*self.layout_parts)

    @cached_property
    def fabric(self) -> Fabric | None:
        return fabric(self.interconnect, self.candidate.type.name)

    def machine_price(self, instance_type: str) -> float | None:
        """US dollars an hour of another machine in the fleet's region, on demand; None if no list has it."""
        wanted = (instance_type, self.candidate.region)
        offers = self.context.catalog.lists[self.backend].offers
        prices = [each.price for each in offers if (each.type.name, each.region) == wanted]
        return min((each for each in prices if each is not None), default=None)

    @cached_property
    def known_host_keys(self) -> dict[str, tuple[str, str]]:
        """The machine and the host key of each node that runs."""
        return {
            node.name: (node.machine, node.ssh.host_key)
            for node in self.previous.nodes
            if self.candidate.kept and node.machine is not None
        }

    @cached_property
    def fixed(self) -> float:
        """US dollars an hour of what is no node."""
        return (self.bastion.price or 0.0) if self.bastion else 0.0

    def budget_findings(self) -> Iterable[Finding]:
        return budget_findings(
            self.fleet,
            self.price,
            self.fixed,
            self.candidate.price_of,
            backend=self.backend,
            nodes=len(self.indices),
            other_nodes=self.context.other_groups.prices,
            later=self.context.other_groups.later,
        )

    def fields(self) -> dict[str, Any]:
        """The fields of CloudPlan but its warnings."""
        fleet, machine, bastion = self.fleet, self.candidate.type, self.bastion
        return {
            "fleet": fleet.name,
            "scope": self.scope,
            "region": self.candidate.region,
            "zone": self.candidate.zone,
            "instance_type": machine.name,
            "spot": self.candidate.spot,
            "nodes": tuple(Node(index, f"{fleet.name}-{index}") for index in self.indices),
            "bastion": bastion,
            "bastion_init": self.bastion_init if bastion else "",
            "cloud_init": self.cloud_init,
            "layout": self.layout,
            "layout_unchanged": self.previous.pins.get("layout") == self.layout,
            "placement": fleet.placement,
            "interconnect": self.interconnect,
            "fabric": self.fabric,
            "gpus": self.node_facts(),
            "cpus": machine.vcpus,
            "memory_mib": machine.memory_mib,
            "arch": machine.arch,
            "blocks": blocks(fleet, machine),
            "job_image": fleet.image,
            "env": {key: value for key, value in fleet.env.items() if value is not None},
            "mounts": fleet_mounts(fleet.mounts),
            "file_systems": self.created_file_systems,
            "protect": fleet.protect,
            "idle": self.idle,
            "lifetime": self.ending,
            "scratch": self.scratch,
            "price": self.price,
            "hourly": round((self.price or 0.0) * len(self.indices) + self.fixed, 6),
            "unpriced": (*self.unpriced(), *file_systems.unpriced(self.created_file_systems)),
            "pins": self._pins(),
            "reasons": (
                count_words(fleet, len(self.indices), self.place_words),
                *place_reason(self.candidate, self.previous),
                *self.own_reasons(),
                *file_systems.reasons(self.created_file_systems),
                *self.fabric_reasons(),
            ),
        }

    def _pins(self) -> dict[str, str]:
        place = {
            "backend": self.backend,
            "region": self.candidate.region,
            "zone": self.candidate.zone,
            "instance_type": self.candidate.type.name,
            "spot": "true" if self.candidate.spot else "false",
        }
        created = self.created_file_systems
        return {
            **place,
            **self.own_pins(),
            **self.boot_pins,
            **file_systems.mounted(self.fleet.mounts),
            **(file_systems.pins(created, self.file_system_place) if created else {}),
            "scope": self.scope,
            "indices": folded(self.indices),
            "layout": self.layout,
        }


AnyPlanner = Planner[Any, Any, Any, Any]
