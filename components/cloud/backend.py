"""What the backends of clouds have in common between a plan and what is brought up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from orch.components.base import Backend, Facts, FleetPlan
from orch.components.cloud.candidates import Candidate
from orch.components.cloud.indices import live_indices
from orch.components.cloud_errors import CloudError
from orch.components.deployment import Deployment, Queue, Shared
from orch.components.request import CloudAnswer, PlanRequest, PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet

# What says where a fleet is and what it is made from, apart from how far it got.
PLACE = ("backend", "project", "scope", "region", "zone", "instance_type", "spot", "network")


class CloudPlan(FleetPlan, Protocol):
    """What is read of a plan, whichever cloud it is of. `unpriced`: what costs money beside the nodes."""

    @property
    def warnings(self) -> tuple[Finding, ...]: ...
    @property
    def unpriced(self) -> tuple[str, ...]: ...


Plan = TypeVar("Plan", bound=CloudPlan)


class CloudBackend(Backend[Candidate, Facts, Plan]):
    """A backend that rents machines.

    `node_type`: the type of a node's resource. `image_pins`: pins of machine images, which orch.lock keeps.
    """

    node_type: ClassVar[str]
    image_pins: ClassVar[tuple[str, ...]]

    @abstractmethod
    def open_session(self, settings: Any) -> Any:
        """What the user's own account is asked through."""

    def session(self, request: PlanRequest) -> Any:
        """What the cloud is asked through: that of the request, else one of the user's own account."""

        def begin() -> Any:
            return request.session(self.name) or self.open_session(self.settings_of(request))

        return request.once((self.name, "session"), begin)

    @abstractmethod
    def cloud_error(self, text: str) -> CloudError | None:
        """The cloud's error in what its provider said."""

    @abstractmethod
    def with_nodes(self, plan: Plan, names: Collection[str]) -> Plan:
        """The same plan with the nodes of these names alone."""

    def stages(
        self, request: PlanRequest, candidate: Candidate, plan: Plan, running: int
    ) -> Iterator[tuple[Plan, Queue | None]]:
        """Plans that are brought up before, and the queue that is waited for after each. `running`: how many
        nodes there are."""
        yield from ()

    def shared(self, request: PlanRequest, plan: Plan) -> Shared | None:
        """What the fleet stands on together with others."""
        return None

    def makers(self, plan: Plan) -> Mapping[str, str]:
        """Nodes that are no resource of their own, each with the resource that makes it."""
        return {}

    def classify_error(self, text: str) -> CloudAnswer | None:
        error = self.cloud_error(text)
        return error.answer if error else None

    def deploy(self, request: PlanRequest, candidate: Candidate, plan: Plan) -> Deployment:
        there = len(live_indices(self.prior(request))) if candidate.kept else 0
        return self._deploy(request, candidate, plan, there)

    def _deploy(self, request: PlanRequest, candidate: Candidate, plan: Plan, running: int) -> Deployment:
        def only(names: Collection[str], running: int) -> Deployment:
            return self._deploy(request, candidate, self.with_nodes(plan, names), running)

        stages = [
            replace(self._one(request, candidate, stage), queue=queue)
            for stage, queue in self.stages(request, candidate, plan, running)
        ]
        return replace(self._one(request, candidate, plan), before=tuple(stages), only=only)

    def _one(self, request: PlanRequest, candidate: Candidate, plan: Plan) -> Deployment:
        whole = request.fleet.gang == "all-or-nothing"
        return replace(
            super().deploy(request, candidate, plan),
            apart=frozenset() if whole else frozenset({self.node_type}),
            answer=self.classify_error,
            whole=whole,
            findings=plan.warnings,
            unpriced=plan.unpriced,
            shared=self.shared(request, plan),
            moves=moves(candidate, self.prior(request)),
            makers=self.makers(plan),
            locked=frozenset(self.image_pins),
        )

    def prior(self, request: PlanRequest) -> PriorState:
        """Decisions to keep: pins of the last finished `up`, else those recorded by an interrupted one.

        Images fall back to orch.lock, unless they are to be looked up anew.
        """
        known = request.previous
        keys = (*PLACE, *self.image_pins)
        begun = {key: known.begun[key] for key in keys if key in known.begun}
        previous = known if known.pins else PriorState(begun)
        pinned = {**known.locked, **previous.pins}
        images = {key: value for key, value in pinned.items() if key in self.image_pins}
        rest = {key: value for key, value in previous.pins.items() if key not in self.image_pins}
        return replace(previous, pins=rest if request.consent.upgrade else {**images, **rest})


def moves(candidate: Candidate, previous: PriorState) -> bool:
    """Whether the stack is elsewhere. A zone's network cannot be changed under running instances."""
    return not candidate.kept and "zone" in previous.pins


def place_reason(candidate: Candidate, previous: PriorState) -> Iterator[str]:
    """What a plan says about a stack that is somewhere already."""
    if candidate.kept:
        yield "it stays where it is: the stack is in that zone"
        if any(node.machine is None for node in previous.nodes):
            yield "host keys: new nodes make their own; those that run keep what an earlier version gave them"
    elif moves(candidate, previous):
        place = "{instance_type} in {zone}".format_map(previous.pins)
        yield f"it moves: the file excludes {place}, where the fleet is; all of it is removed first"


def scripts(fleet: Fleet, folder: Path) -> dict[str, str]:
    """The text of `init[].file`, by path. Raises PlanErrors."""
    found: dict[str, str] = {}
    missing: list[Finding] = []
    for index, step in enumerate(fleet.init):
        if step.file is None:
            continue
        path = folder / Path(step.file).expanduser()
        try:
            found[step.file] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            summary = f"the script {step.file} cannot be read"
            missing.append(Finding("ORCH129", f"init[{index}].file", summary, detail=str(error)))
    if missing:
        raise PlanErrors(missing)
    return found


def regions_of(fleet: Fleet, backend: str) -> tuple[str, ...]:
    """All regions that have an offer for the fleet's types, for looking up its reservation."""
    from orch.catalog.load import catalog
    from orch.catalog.unpriced import doubtful, unlisted
    from orch.offers.query import wanted_of

    known = catalog()
    patterns = wanted_of(fleet, known).instance_types
    offers = [*known.lists[backend].offers]
    offers += [offer for each in doubtful(known, backend) for offer in unlisted(known, each)]
    return tuple(sorted({o.region for o in offers if o.region and (not patterns or o.type.name in patterns)}))
