"""The one interface of a backend: what orch asks of a place where nodes come from.

A backend is a folder of its own with one subclass of `Backend` in `backend.py`. Those of this package are
found by the folder's name. Another package names its subclass in an entry point of the group `orch.backends`:

    [project.entry-points."orch.backends"]
    mycloud = "mycloud.backend:MyCloud"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from orch.components.accounts import Account
from orch.components.deployment import Deployment, Room
from orch.components.explain import NOTHING, Explained, Traits
from orch.components.marks.marked import MarkedResource, Survey
from orch.components.node_count import own_pins
from orch.components.request import CloudAnswer, PlanRequest, PriorState, RecoveredFleet
from orch.spec.errors import OrchError
from orch.spec.models import Fleet
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings

if TYPE_CHECKING:
    import pulumi

    from orch.components.marks.orphans import StackSnapshot
    from orch.components.volumes import VolumeBackend
    from orch.spec.models.ssh import SshConfig


class Candidate(Protocol):
    """Where a fleet may go. `price`: US dollars an hour of one node, None where it is not known.

    `kept`: the fleet is there already. `words` name the place in a plan.
    """

    @property
    def backend(self) -> str: ...
    @property
    def price(self) -> float | None: ...
    @property
    def kept(self) -> bool: ...
    @property
    def words(self) -> str: ...


class PlannedNode(Protocol):
    @property
    def name(self) -> str: ...


class FleetPlan(Protocol):
    """What is read of a plan, whichever backend made it.

    `pins` are the decisions that must survive, read back as `PriorState.pins`; `reasons` tell a reviewer of
    each. `hourly`: US dollars an hour of all nodes.
    """

    @property
    def nodes(self) -> Sequence[PlannedNode]: ...
    @property
    def pins(self) -> Mapping[str, str]: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...
    @property
    def hourly(self) -> float: ...


Place = TypeVar("Place", bound=Candidate)
Facts = TypeVar("Facts")
Plan = TypeVar("Plan", bound=FleetPlan)


class Backend(ABC, Generic[Place, Facts, Plan]):
    """A place where nodes come from.

    `candidates`, `facts`, `plan` and `register` are called in this order, the last inside a Pulumi program;
    a backend has all four, the last in a module `resources` if it likes. The others have a default: they are
    for backends that have something to say there. What the language says of the backend (its name, what it
    acts on) is in its `settings`.

    `packages`: how the types of its resources begin (`aws:`), where a killed call may leave some in a cloud.
    `rehearsal`: the package with its simulated account, of another package's backend (orch's own register in
    `rehearsal/`); None where nodes are what they are in a rehearsal.
    `rehearsal_server`: one whose `hooks` start a real server of its kind on this machine in its place.
    `key_variables`: those of the environment that have credentials, of which one is enough.
    `explained`: how changes of its fleets are told. `tells_room`: whether `room` tells of machines on demand.
    `accounts_per_stack`: stacks of one project may have different accounts, such as the clusters of several
    contexts: a plan names its own (`Deployment.account`), `recorded_account` returns that of a stack.
    `catalog`: a folder with its machine types and prices (`types.csv` and `prices.csv` in the form of
    `catalog/`), for `orch offers`.
    """

    name: ClassVar[str]
    settings: ClassVar[type[BackendSettings]]
    packages: ClassVar[tuple[str, ...]] = ()
    rehearsal: ClassVar[str | None] = None
    rehearsal_server: ClassVar[str | None] = None
    key_variables: ClassVar[tuple[str, ...]] = ()
    explained: ClassVar[Explained] = NOTHING
    tells_room: ClassVar[bool] = False
    accounts_per_stack: ClassVar[bool] = False
    catalog: ClassVar[Path | None] = None

    @abstractmethod
    def candidates(self, request: PlanRequest) -> Sequence[Place]:
        """Where the fleet may go, in the order to try; alone where it is, as long as the file permits.

        Raises PlanErrors when there is no such place, and what asking the backend raises.
        """

    def hosts(self, request: PlanRequest) -> SshConfig | None:
        """The hosts of a cluster that is there already, where the file names one in its `backend_options`:
        they are taken in as those of `ssh_config` are.

        Raises PlanErrors where there is none like that, and what asking the backend raises.
        """
        return None

    @abstractmethod
    def facts(self, request: PlanRequest, candidate: Place) -> Facts:
        """All that the plan must know of the backend at a candidate: frozen. The only part that asks."""

    @abstractmethod
    def plan(self, request: PlanRequest, candidate: Place, facts: Facts) -> Plan:
        """What the fleet becomes there: frozen and pure, the same for the same arguments.

        Raises PlanErrors.
        """

    def register(
        self, request: PlanRequest, plan: Plan
    ) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
        """Make the plan's resources, one to one; the FleetState as data, and the client's private key where
        the fleet has one of its own.

        If it is not overridden, the function `register(backend, request, plan)` of the module `resources` in
        the backend's folder does it.
        """
        return self.module("resources").register(self, request, plan)

    def module(self, name: str) -> Any:
        """A module of the backend's folder, imported when it is needed: `resources` imports Pulumi and the
        cloud's package of it, which no plan needs. Raises ModuleNotFoundError."""
        return import_module(self.module_name(name) or f"{type(self).__module__.rpartition('.')[0]}.{name}")

    @classmethod
    def module_name(cls, name: str) -> str | None:
        """The full name of a module of the backend's folder or of one that it extends, None without."""
        for each in cls.__mro__:
            package = each.__module__.rpartition(".")[0]
            if package and issubclass(each, Backend):
                with suppress(ModuleNotFoundError):
                    if find_spec(f"{package}.{name}") is not None:
                        return f"{package}.{name}"
        return None

    def deployment(self, request: PlanRequest, candidate: Place) -> Deployment:
        """The fleet planned at a candidate, ready to be brought up. Raises what `facts` and `plan` raise."""
        return self.deploy(request, candidate, self.plan(request, candidate, self.facts(request, candidate)))

    def deploy(self, request: PlanRequest, candidate: Place, plan: Plan) -> Deployment:
        """A plan with how it is brought up."""
        return Deployment(
            plan=plan,
            reasons=tuple(plan.reasons),
            pins={**plan.pins, **own_pins(request, len(plan.nodes))},
            hourly=plan.hourly,
            register=partial(self.register, request, plan),
            place=candidate.words,
            answer=self.classify_error,
            traits=self.traits(request, candidate, plan),
            explained=self.explained,
            nodes=tuple(node.name for node in plan.nodes),
            new_node=self.new_node(plan),
        )

    def new_node(self, plan: Plan) -> Mapping[str, Any] | None:
        """What a node that comes to the fleet has (`Deployment.new_node`)."""
        return None

    def settle(self, request: PlanRequest, candidates: Sequence[Place]) -> Sequence[Place]:
        """The same candidates with all known of the first one; the backend may be asked.

        Raises PlanErrors when it has none of them.
        """
        return candidates

    def more_places(self, request: PlanRequest, kept: Place) -> Sequence[Place]:
        """Where nodes may go that the place where the fleet is has no room for; nothing where all nodes of a
        fleet are in one place."""
        return ()

    def spreads(self, request: PlanRequest, kept: Place) -> bool:
        """Whether a fleet that is up can have nodes in other places of its region."""
        return False

    def zone_names(self, request: PlanRequest, region: str) -> Mapping[str, str] | None:
        """The zones of a region by all their names in small letters, each with the name that candidates and
        nodes have; None where nodes have no zones. Raises what asking the backend raises."""
        return None

    def room(self, request: PlanRequest, count: int, mark: str) -> Room | None:
        """Where there is room for so many nodes of a fleet that leaves its place, asked without making any;
        None where the backend does not tell. `mark`: of the stack. Raises what asking the backend raises."""
        return None

    def listed(self, fleet: Fleet, settings: Any) -> Sequence[Place]:
        """The candidates as far as the file and the catalogue tell, nobody asked: for files of strangers.

        Raises PlanErrors when there is none.
        """
        return ()

    def traits(self, request: PlanRequest, candidate: Place, plan: Plan) -> Traits:
        """What the nodes of a plan are, a few words each (`disk`: "300 GB"); recorded to tell changes by."""
        return {}

    def refused_region(self, error: OrchError, candidate: Place) -> str | None:
        """The region that refuses, where an error of asking about a candidate is of its region alone: other
        regions are tried then, else other backends."""
        return None

    def classify_error(self, text: str) -> CloudAnswer | None:
        """What an error of its provider means for trying elsewhere; None where it says nothing of that."""
        return None

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        """Remove what a call that did not end made and nobody recorded; what was removed, each as it goes.

        Raises what asking the backend raises.
        """
        return ()

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        """What bears the marks of an orch project, wherever its settings or its state lead.

        `state`: the resources of all stacks, and how their clouds are asked; its `marks` are the stacks'.
        Raises what asking the backend raises, where nothing of it could be looked at.
        """
        return Survey()

    def delete_data(self, resources: Sequence[MarkedResource], state: StackSnapshot) -> Iterable[str]:
        """Delete resources of a survey that hold data; the names of what was removed, each as it goes.

        Raises what asking the backend raises.
        """
        return ()

    @property
    def recovers(self) -> bool:
        """Whether a fleet whose state was lost can be told from the marks of its resources: where the backend
        has a module `recovery`."""
        return self.module_name("recovery") is not None

    def recover(self, request: PlanRequest, found: Sequence[MarkedResource]) -> RecoveredFleet:
        """What the marked resources of a stack tell of the fleet, where the backend `recovers` one.

        Raises PlanErrors where they tell of no one fleet, and what asking the backend raises.
        """
        return self.module("recovery").recover(self, request, found)

    def unmarked_id(self, request: PlanRequest, kind: str, inputs: Mapping[str, Any]) -> str | None:
        """The id, as `pulumi import` takes it, of a resource without a mark, by what it is made with; None
        where it is not known. Raises what asking the backend raises."""
        return self.module("recovery").unmarked_id(self, request, kind, inputs)

    def ended_nodes(
        self, previous: PriorState, settings: Iterable[BackendSettings], session: Callable[[str], Any]
    ) -> frozenset[str]:
        """Names of the recorded nodes that ended themselves, or that the cloud took back; asked where a
        fleet's nodes do that.

        What the backend does not tell for sure is no such node. Raises what asking it raises.
        """
        return frozenset()

    def account(self, settings: Iterable[BackendSettings], session: Callable[[str], Any]) -> Account | None:
        """Return the account that the present credentials act in; None if nobody logs in anywhere.

        Called once per operation and backend, before a recorded resource is believed to be gone. Raises what
        asking the backend raises.
        """
        return None

    def recorded_account(self, snapshot: StackSnapshot, root: Path) -> Account | None:
        """Return the account in which the engine looks for the recorded resources of a stack, if the backend
        has `accounts_per_stack`; None if nobody compares it.

        `root`: the project's folder. Raises what asking the backend raises.
        """
        return None

    def silent_nodes(self, mark: str, names: Collection[str]) -> Mapping[str, str]:
        """Why nodes of a stack do not answer, by name, as far as the backend can tell at once.

        `mark`: of the stack, `PROJECT/STACK/SCOPE`."""
        return {}

    def tunnel_environment(self, settings: BackendSettings) -> Mapping[str, str]:
        """What commands that lead to its nodes must find in their environment: secrets among them."""
        return {}

    def volumes(self) -> VolumeBackend | None:
        """Its volumes, None where it has none."""
        return None

    def settings_of(self, request: PlanRequest) -> Any:
        """Its entry of orch.yml, or the defaults."""
        return self.entry(request.settings)

    def entry(self, configured: Iterable[BackendSettings]) -> Any:
        """Its entry among those of orch.yml, or the defaults."""
        return entry_of(configured, self.settings)
