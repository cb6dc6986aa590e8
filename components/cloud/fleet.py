"""What the backends of clouds have in common between the plan of a place and what is brought up there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orch.components.cloud_errors import CloudError
from orch.components.cloud.candidates import Candidate
from orch.components.deployment import (Deployment, Place, Queue, Shared)
from orch.components.explain import Explained, Traits
from orch.spec.findings import Finding, PlanErrors
from orch.components.request import PlanRequest, PriorState

if TYPE_CHECKING:
    import pulumi

    from orch.spec.models import Fleet


class Node(Protocol):
    @property
    def name(self) -> str: ...


class CloudPlan(Protocol):
    """What is read of a plan, whichever cloud it is of."""

    @property
    def nodes(self) -> Sequence[Node]: ...
    @property
    def pins(self) -> Mapping[str, str]: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...
    @property
    def warnings(self) -> tuple[Finding, ...]: ...
    @property
    def hourly(self) -> float: ...
    @property
    def unpriced(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class CloudFleet:
    """A fleet planned at one place of a cloud.

    `traits`: what its nodes are, in few words. `only`: the same plan with the nodes of these names alone,
    while so many are running. `before`: what has to be brought up first. `moves`: the stack is where the file
    now excludes it, and is removed before.
    `queue`, `makers`, `shared`: as in `Deployment`.
    """

    plan: CloudPlan
    candidate: Candidate
    traits: Traits
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str]]]
    only: Callable[[Collection[str], int], CloudFleet]
    before: tuple[CloudFleet, ...] = ()
    moves: bool = False
    queue: Queue | None = None
    makers: Mapping[str, str] = field(default_factory=dict[str, str])
    shared: Shared | None = None

    @property
    def steps(self) -> tuple[CloudFleet, ...]:
        """What `up` brings up one after the other; a preview shows the last."""
        return (*self.before, self)


@dataclass(frozen=True)
class Cloud:
    """What tells one cloud from another here.

    `node`: the type of a node's resource. `images`: pins that name machine images. `read`: the cloud's error
    in what a provider said. `explained`: how changes of its fleets are told.
    """

    node: str
    images: tuple[str, ...]
    read: Callable[[str], CloudError | None]
    explained: Explained


# What says where a fleet is and what it is made from, apart from how far it got.
PLACE = ("backend", "project", "scope", "region", "zone", "instance_type", "spot", "network")


def settled(order: PlanRequest, cloud: Cloud) -> PriorState:
    """What the stack has decided, or had when an `up` was cut short; images of the lock file, unless they are
    to be looked up anew.

    The component of a fleet records its pins as soon as an `up` begins, so one that was killed goes on in the
    same zone.
    """
    known = order.previous
    keys = (*PLACE, *cloud.images)
    begun = {key: known.begun[key] for key in keys if key in known.begun}
    previous = known if known.pins else PriorState(begun)
    images = {key: value for key, value in {**known.locked, **previous.pins}.items() if key in cloud.images}
    rest = {key: value for key, value in previous.pins.items() if key not in cloud.images}
    return replace(previous, pins=rest if order.consent.upgrade else {**images, **rest})


def compiled(
    fleet: Fleet,
    cloud: Cloud,
    places: Sequence[Candidate],
    compile_at: Callable[[Candidate], CloudFleet],
    settle: Callable[[Sequence[Candidate]], Sequence[Candidate]] = lambda places: places,
) -> Deployment:
    """The plan of the first place; those of the others are made when they are tried.

    `settle`: the same places with the first one's zone known.
    """

    def ready(made: CloudFleet, elsewhere: tuple[Place, ...]) -> Deployment:
        whole = fleet.gang == "all-or-nothing"
        return Deployment(
            made.plan.reasons,
            dict(made.plan.pins),
            (),
            hourly=made.plan.hourly,
            register=made.register,
            apart=frozenset() if whole else frozenset({cloud.node}),
            place=made.candidate.words,
            elsewhere=elsewhere,
            answer=lambda text: error.answer if (error := cloud.read(text)) else None,
            whole=whole,
            findings=made.plan.warnings,
            unpriced=made.plan.unpriced,
            before=tuple(ready(step, ()) for step in made.before),
            queue=made.queue,
            shared=made.shared,
            moves=made.moves,
            traits=made.traits,
            explained=cloud.explained,
            nodes=tuple(node.name for node in made.plan.nodes),
            makers=made.makers,
            only=lambda names, running: ready(made.only(names, running), ()),
            locked=frozenset(cloud.images),
        )

    def at(*tried: Candidate) -> Deployment:
        place, *others = settle(tried)
        elsewhere = tuple(Place(other.words, partial(at, other)) for other in others)
        return ready(compile_at(place), elsewhere)

    return at(*places)


def moves(candidate: Candidate, previous: PriorState) -> bool:
    """Whether the stack is elsewhere. A zone's network cannot be changed under running instances."""
    return not candidate.kept and "zone" in previous.pins


def place_reason(candidate: Candidate, previous: PriorState) -> Iterator[str]:
    """What a plan says about a stack that is somewhere already."""
    if candidate.kept:
        yield "it stays where it is: the stack is in that zone"
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
