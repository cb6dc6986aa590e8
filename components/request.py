"""What all plans share: errors with a place in the file, what a stack decided before, what is agreed to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from orch.spec.errors import ExitCode, OrchError
from orch.spec.state import NodeState

if TYPE_CHECKING:
    from orch.spec.models import Fleet
    from orch.spec.models.backends.base import BackendSettings


T = TypeVar("T")


class NodeProblem(OrchError):
    """A node that is kept out of its fleet, or could not be brought in or mended, while the others are."""

    exit_code = ExitCode.HOSTS

    def __init__(self, summary: str, *, node: str, **told: str | None) -> None:
        super().__init__(summary, **told)
        self.node = node


class KeyProblem(NodeProblem):
    """A node that nobody logs in to before its host key, or that of a jump host, is accepted: `new`."""

    def __init__(self, summary: str, *, node: str, new: NewHostKey, **told: str | None) -> None:
        super().__init__(summary, node=node, **told)
        self.new = new


@dataclass(frozen=True)
class NodeWarning:
    """Something about a node that does not keep it out."""

    node: str
    text: str


@dataclass(frozen=True)
class CloudAnswer:
    """What an error of a cloud means.

    `elsewhere`: another place may do; `again`: the same may, a little later; else trying on would repeat it.

    `reason` holds the cloud's own code and what it means, `code` is ours.
    """

    elsewhere: bool
    reason: str
    code: str
    hint: str | None = None
    again: bool = False


DATA_TYPES: Mapping[str, str] = {
    "aws:efs/fileSystem:FileSystem": "efs",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "fsx-lustre",
    "gcp:filestore/instance:Instance": "filestore",
    "orch-lambda:index:FileSystem": "lambda-filesystem",
}
"""Types of a fleet's resources that hold data which nothing else has, each with its type of mount."""
FILE_SYSTEM_PIN = "file_system:"
"""What pins of created file systems begin with; the path follows."""


TEMPLATE = "template"
"""The pin of a fleet that has had no node yet: it is nowhere, and may go wherever its file permits."""


@dataclass(frozen=True)
class RecordedFileSystem:
    """A file system that a fleet's stack records.

    `path`: where nodes mount it; the resource's own name where no record tells. `size`: GiB, None where it
    grows with what it holds. `throughput`: as the cloud gives it, None where it follows from load or size.
    """

    urn: str
    id: str
    type: str
    path: str
    size: int | None = None
    throughput: int | None = None


@dataclass(frozen=True)
class NodeVolume:
    """A volume that new nodes are made with: its id, the place where it is and they go, and the path where
    they have it."""

    id: str
    place: str
    path: str


@dataclass(frozen=True)
class PriorState:
    """What the stack has already decided, from its outputs. A new stack has none of it.

    The same file and the same `PriorState` give the same plan, also in a fresh clone: a newer orch or another
    machine must not move a running cluster. `backend`: where its nodes are, None while it has none.
    `unfinished`: the pins of an `up` that was interrupted; `locked`: those of the project's lock file.
    `existing_nodes`: names of the nodes that the state records; `file_systems`: those that it records;
    None where it was not read. `ended`: names of nodes of it that ended themselves. `layouts`: the layout
    that each machine was made with, by its node: it tells which node an interrupted `up` has made anew.
    """

    pins: dict[str, str] = field(default_factory=dict)
    nodes: tuple[NodeState, ...] = ()
    backend: str | None = None
    unfinished: dict[str, str] = field(default_factory=dict)
    locked: dict[str, str] = field(default_factory=dict)
    existing_nodes: frozenset[str] | None = None
    file_systems: tuple[RecordedFileSystem, ...] | None = None
    ended: frozenset[str] = frozenset()
    layouts: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of_outputs(cls, outputs: dict[str, Any]) -> PriorState:
        pins = outputs.get("pins")
        fleet = outputs.get("fleet")
        nodes = fleet.get("nodes") if isinstance(fleet, dict) else None
        recorded = {str(k): str(v) for k, v in pins.items()} if isinstance(pins, dict) else {}
        backend = str(fleet["backend"]) if isinstance(fleet, dict) and "backend" in fleet else None
        return cls(
            pins=recorded,
            nodes=tuple(NodeState.model_validate(whole(node)) for node in nodes or ()),
            backend=None if TEMPLATE in recorded else backend,
        )


@dataclass(frozen=True)
class NewHostKey:
    """A host key that the next `up` pins. `source`: where it comes from, "scanned" = the host itself."""

    host: str
    key: str
    fingerprint: str
    source: str


@dataclass(frozen=True)
class Approvals:
    """What the user agreed to beyond the file.

    `accept_drift`: hosts are taken as they are now. `rekeyed`: hosts whose key is asked anew. `keys`: host
    keys shown and accepted, by host. `unseen`: which others are accepted without a look: none, those of
    `rekeyed`, all that are new. `upgrade`: pinned images are looked up anew.
    `force`: nodes may go while runs are on them. `lose_data`: paths of created file systems that may be
    deleted, or made anew where they are gone. `another`: the fleet may be made although another state has
    made one of its name.
    """

    accept_drift: bool = False
    upgrade: bool = False
    force: bool = False
    rekeyed: frozenset[str] = frozenset()
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    unseen: Literal["none", "named", "all"] = "none"
    lose_data: frozenset[str] = frozenset()
    another: bool = False


NO_CONSENT = Approvals()


@dataclass(frozen=True)
class Spent:
    """What a fleet has cost so far, in US dollars; None where that is not known, with the `problem`.

    `unpriced_hours`: of nodes whose price is not known, which are not in it.
    """

    dollars: float | None
    unpriced_hours: float = 0.0
    problem: str | None = None


@dataclass(frozen=True)
class RecoveredFleet:
    """What a cloud tells of a fleet whose state was lost.

    `pins`: where it is and what it is made from, as an interrupted `up` records them; `nodes`: the names of
    those that are there; `created`: when the fleet was, in seconds since the epoch; `told`: what a person has
    to know of it.
    """

    pins: Mapping[str, str]
    nodes: frozenset[str]
    created: int
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanRequest:
    """What is to be planned: a fleet, where its file and its project lie, and what is known and agreed to.

    `scope` tells this project's resources from another's. `session` gives what a backend is asked through,
    None where it is the user's own account; `stack` what another stack of the project has decided. `tags` are
    the project's. `indices`: the nodes to plan, None: as many as the file asks for. `count`: how many nodes
    the fleet shall have, None: as its file and its stack say, but `at_least` so many where the file allows
    them. `more`: so many beside those that are there, containers of `image` for the run of the mark
    `made_for`, with one of `volumes`, if any. `reservation`: what a run wants the first nodes made from,
    where the file names none. `own_pins`: what every plan of it records. `created`: when the fleet was, or is
    just now, in seconds since the epoch. `spent`: what it has cost so far, where its budget bounds that.
    `evacuated`: zones where no new node goes. `leaving`: indices of nodes that leave such a zone now, whose
    new machines are made before the old ones go; `moves`: all of the fleet leaves it.
    """

    fleet: Fleet
    settings: Sequence[BackendSettings]
    previous: PriorState
    scope: str
    root: Path
    folder: Path
    consent: Approvals = NO_CONSENT
    session: Callable[[str], Any] = lambda backend: None
    stack: Callable[[str], PriorState] = lambda name: PriorState()
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    indices: tuple[int, ...] | None = None
    count: int | None = None
    at_least: int = 0
    more: int = 0
    image: str | None = None
    made_for: str | None = None
    volumes: tuple[NodeVolume, ...] = ()
    reservation: str | None = None
    own_pins: Mapping[str, str] = field(default_factory=dict[str, str])
    created: int = 0
    spent: Spent | None = None
    evacuated: frozenset[str] = frozenset()
    leaving: frozenset[int] = frozenset()
    moves: bool = False
    # The fleet's other nodes, where these are a part of it: an object of the backend's own.
    other_groups: Any = None

    # Where it turned out that the fleet may not go, and why: backends, and regions of them.
    refused: dict[str, OrchError] = field(
        default_factory=dict[str, OrchError], init=False, repr=False, compare=False, hash=False
    )
    _asked: dict[object, Any] = field(
        default_factory=dict[object, Any], init=False, repr=False, compare=False, hash=False
    )

    @property
    def backends(self) -> tuple[str, ...]:
        """Where nodes of the fleet may be created. One that names no backend stays on that where it is."""
        if self.fleet.ssh_config is not None:
            return ("ssh",)
        written = self.fleet.written_backends
        if written is None and self.at not in (None, "ssh"):
            return (self.at,)
        from orch.spec.models.backends import effective

        return effective(written, tuple(each.type for each in self.settings))

    @property
    def at(self) -> str | None:
        """The backend where the fleet is, or began to be."""
        return self.previous.backend or self.previous.unfinished.get("backend")

    @property
    def leaves_its_place(self) -> bool:
        """Whether all of the fleet leaves the zone where it is, or where an interrupted `up` began it."""
        decided = self.previous.pins or self.previous.unfinished
        return self.moves and decided.get("zone") in self.evacuated

    def of_nodes(
        self, previous: PriorState, indices: tuple[int, ...] | None, other_groups: Any = None
    ) -> PlanRequest:
        """The same for some nodes of the fleet. `previous`: what was decided for them."""
        part = replace(self, previous=previous, indices=indices, other_groups=other_groups)
        object.__setattr__(part, "_asked", self._asked)
        return part

    def once(self, key: object, ask: Callable[[], T]) -> T:
        """What a backend is asked once for all candidates of this request: its answer from then on."""
        if key not in self._asked:
            self._asked[key] = ask()
        return self._asked[key]


def whole(value: Any) -> Any:
    """The same with whole numbers as int: all numbers come back from the engine as floats."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
