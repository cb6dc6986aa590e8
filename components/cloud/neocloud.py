"""Neoclouds: machines whose images have NVIDIA's driver and Docker, on a cloud without a tunnel.

Crusoe, Lambda and Nebius are such clouds. SSH gets in straight, over given hops or over a bastion.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

from orch.catalog.load import catalog
from orch.components.cloud.backend import CloudBackend
from orch.components.cloud.candidates import CloudCandidate
from orch.components.cloud.machines.cloudinit import (
    RUNS_INIT,
    ended_by_time,
    node_config,
    node_files,
    prepared,
)
from orch.components.cloud.machines.ssh_access import WORLD, AccessMethod, way_in
from orch.components.cloud.plan import Bastion, NeocloudPlan
from orch.components.cloud.planner import Facts, Planner
from orch.components.cloud.sizing import nvidia
from orch.components.cloud_errors import CategoryErrors, CloudError
from orch.components.idleness import SCRIPT as IDLE_SCRIPT
from orch.components.marks.marked import Survey
from orch.components.marks.orphans import NamedResource, StackSnapshot, delete_named, survey_named
from orch.components.request import PlanRequest
from orch.runner.preparation.init_steps import steps
from orch.spec.models import Fleet
from orch.spec.models.backends.base import CloudSettings
from orch.spec.models.ssh import Jump
from orch.templates import render

PREPARE = "/usr/local/sbin/orch-prepare"


Place = TypeVar("Place", bound=CloudCandidate)
Plan = TypeVar("Plan", bound=NeocloudPlan)
Settings = TypeVar("Settings", bound=CloudSettings)


class NeocloudPlanner(Planner[Place, Facts, Plan, Settings]):
    """The plan of one fleet at one place of a neocloud.

    `toolkit`: the package of NVIDIA's container toolkit, if images lack it.
    """

    toolkit: ClassVar[str | None] = None

    @cached_property
    def access(self) -> AccessMethod:
        return way_in(self.block, self.settings)

    @cached_property
    def jumps(self) -> tuple[Jump, ...]:
        return (self.block.proxy_jump or ()) if self.access.kind == "given" else ()

    @cached_property
    def bastion_parts(self) -> tuple[str | None, Any]:
        """The type and the machine image of a small machine without GPUs, each None if there is none."""
        return None, None

    @cached_property
    def bastion(self) -> Bastion | None:
        """A small machine with a public address."""
        kind, image = self.bastion_parts
        if self.access.kind != "bastion" or kind is None or image is None:
            return None
        return Bastion(kind, image.id, True, self.access.cidrs or (WORLD,), self.machine_price(kind))

    @cached_property
    def interconnect(self) -> str:
        return "infiniband" if self.candidate.infiniband else "ethernet"

    @cached_property
    def rank_by_topology(self) -> bool:
        return self.ranked and self.candidate.infiniband is not None

    @cached_property
    def cards(self) -> int:
        """InfiniBand cards that a node must have."""
        return 0

    @cached_property
    def data(self) -> Literal["local", "disk"] | None:
        """Disks that hold images and containers of jobs, None for the root disk."""
        return None

    @cached_property
    def cloud_init(self) -> str:
        """The cloud-config of a node, with marks for its name and its keys."""
        init = steps(self.fleet, self.context.scripts)
        prepare = render(
            "image-prepare.sh.j2",
            gpus=nvidia(self.candidate.type),
            toolkit=self.toolkit,
            cards=self.cards,
            data=self.data,
            idle=IDLE_SCRIPT if self.idle else None,
            steps=init,
            **RUNS_INIT,
        )
        files = [
            *node_files(PREPARE, sshd="AllowTcpForwarding yes\n"),
            *prepared(PREPARE, prepare, init, cloud=None, idle=self.idle_script),
            *ended_by_time(self.ending_script),
        ]
        return node_config(self.fleet, files, host_key="given")

    def fields(self) -> dict[str, Any]:
        """The fields of NeocloudPlan but its warnings."""
        return super().fields() | {
            "access": self.access.kind,
            "jumps": self.jumps,
            "image": self.image.id,
            "whole": self.whole,
        }


class NeocloudBackend(CloudBackend[Facts, Plan]):
    """A backend of a neocloud, whose fleets are of one type at one place.

    `find`: its candidates; `errors`: the meaning of its errors.
    """

    find: ClassVar[Callable[..., Sequence[CloudCandidate]]]
    errors: ClassVar[CategoryErrors]

    @abstractmethod
    def client(self, session: Any) -> Any:
        """Return the client of a session. Its `removable` lists what orphans are looked for in."""

    def connected(self, request: PlanRequest) -> Any:
        """Return the client of a request."""
        return request.once((self.name, "client"), lambda: self.client(self.session(request)))

    def candidates(self, request: PlanRequest) -> Sequence[CloudCandidate]:
        return self.find(
            request.fleet,
            self.settings_of(request),
            catalog(),
            previous=self.prior(request),
            other_backends=request.backends,
        )

    def listed(self, fleet: Fleet, settings: Any) -> Sequence[CloudCandidate]:
        return self.find(fleet, settings, catalog())

    def spreads(self, request: PlanRequest, kept: CloudCandidate) -> bool:
        return False

    def cloud_error(self, text: str) -> CloudError | None:
        return self.errors.read(text)

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        return survey_named(self.name, project, self._removable(state))

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        return delete_named(snapshot, self.packages[0], lambda: self._removable(snapshot))

    def _removable(self, state: StackSnapshot) -> Iterable[NamedResource]:
        return self.client(self.asked_by(state)).removable(self.price)
