"""A fleet that is planned for one place of one backend, ready to be brought up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from orch.components.accounts import Account
from orch.components.explain import NOTHING, Explained, Traits
from orch.components.request import CloudAnswer, NewHostKey, NodeProblem, NodeWarning
from orch.spec.findings import Finding
from orch.spec.state import WATCHED, FleetHealth, FleetSpares

if TYPE_CHECKING:
    import pulumi


@dataclass(frozen=True)
class Place:
    """Another place where a fleet may go; `compile` plans it there, and raises what planning raises."""

    words: str
    compile: Callable[[], Deployment]


SHARED = "network."
"""How names of stacks begin that fleets share; no fleet's name has a dot."""


@dataclass(frozen=True)
class SharedNetworks:
    """What fleets share: a stack of its own that is there as long as one of them is.

    `name` is what the files call it, and the pin `network` of its fleets. `register` makes its resources
    inside a Pulumi program; `pins` are what it keeps for fleets that come later.
    """

    name: str
    pins: Mapping[str, str]
    register: Callable[[], None]

    @property
    def stack(self) -> str:
        return f"{SHARED}{self.name}"


@dataclass(frozen=True)
class Queue:
    """Nodes that are given some time after they were asked for.

    `words` tell what is waited for; `ask` gives None as long as it lasts, True once they are there, or why
    they never will be. `patience_s`: how long they are waited for.
    """

    words: str
    patience_s: float
    ask: Callable[[], CloudAnswer | bool | None]


@dataclass(frozen=True)
class Room:
    """Where there is room for nodes: a place in words, None for nowhere. `full`: places without, with why."""

    place: str | None
    full: tuple[str, ...] = ()


@dataclass(frozen=True)
class PricedNodes:
    """Nodes of a plan that are of one type, in one place and at one price.

    `price`: US dollars an hour of one node, None where no list has it. The market `reserved`: a reservation
    that the file names.
    """

    backend: str
    nodes: tuple[str, ...]
    machine: str
    place: str
    market: Literal["on-demand", "spot", "reserved"]
    price: float | None
    gpus: int = 0
    gpu: str = ""


@dataclass(frozen=True)
class Deployment:
    """A planned fleet.

    `register` makes its resources inside a Pulumi program; it gives the fleet's state, and the client's
    private key where the fleet has one of its own.
    """

    reasons: tuple[str, ...]
    # What must stay as it is decided now, read back as `PriorState`; orch.lock keeps those in `locked` too.
    pins: dict[str, str]
    # US dollars an hour of all nodes; `unpriced` is what costs money beside that.
    hourly: float
    register: Callable[[], tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]]
    # The backend's own plan, and images of this machine that it needs.
    plan: Any = None
    images: tuple[str, ...] = ()
    # Nodes that are kept out, and what is told of the others.
    problems: tuple[NodeProblem, ...] = ()
    warnings: tuple[NodeWarning, ...] = ()
    new_keys: tuple[NewHostKey, ...] = ()
    # Types of resources of which one that fails does not stop the others.
    isolated: frozenset[str] = frozenset()
    parallel: int | None = None
    # Where it goes, where it may go else, and what an error of the cloud means for trying on.
    place: str | None = None
    elsewhere: tuple[Place, ...] = ()
    # Where more nodes may go than there is room for where the fleet is.
    more: Callable[[], tuple[Place, ...]] = tuple
    answer: Callable[[str], CloudAnswer | None] = lambda text: None
    # All nodes or none.
    whole: bool = False
    findings: tuple[Finding, ...] = ()
    unpriced: tuple[str, ...] = ()
    # Steps on the way, brought up first; what a step's nodes wait for once it is.
    before: tuple[Deployment, ...] = ()
    queue: Queue | None = None
    # What it stands on together with other fleets, brought up before it.
    shared: SharedNetworks | None = None
    # The file does not allow the place where the fleet is: it is removed there first.
    moves: bool = False
    # What its nodes are in few words, recorded with the stack, and how changes of that are told.
    traits: Traits = field(default_factory=dict[str, str])
    explained: Explained = NOTHING
    # Nodes that ended themselves, and are not made again: that the rest of them goes is no change of a plan.
    ended: frozenset[str] = frozenset()
    # The nodes' names. Of clouds: the resources that made those that are no resource of their own, and the
    # same plan with the first nodes alone while the second ones are running.
    nodes: tuple[str, ...] = ()
    makers: Mapping[str, str] = field(default_factory=dict[str, str])
    only: Callable[[Collection[str], Collection[str]], Deployment] | None = None
    locked: frozenset[str] = frozenset()
    # The account that the plan is for, if the backend has `accounts_per_stack`.
    account: Account | None = None
    # Its nodes by type, place and price, where they cost money.
    priced: tuple[PricedNodes, ...] = ()
    # What a node that comes to it has, in words of `NodeState`, as far as placing a run asks.
    new_node: Mapping[str, Any] | None = None
    # How the health of its nodes is watched, and which of them are spares.
    health: FleetHealth = WATCHED
    spares: FleetSpares | None = None
