"""The backend `local`: nodes are containers on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.base import Backend
from orch.components.cloud.marked import Survey, survey_of
from orch.components.cloud.orphans import StackSnapshot
from orch.components.deployment import Deployment
from orch.components.explain import ChangeRow, Explained, Traits
from orch.components.init_steps import scripts
from orch.components.local.facts import LocalFacts, ask
from orch.components.local.marked import marked, remove_marked
from orch.components.local.plan import LocalPlan, plan
from orch.components.local.simulated_gpus import described
from orch.components.request import PlanRequest
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.local import LocalSettings

if TYPE_CHECKING:
    from orch.components.volumes import VolumeBackend

_NODE = "orch:local:Node"

EXPLAINED = Explained(
    traits={"cpus": "CPUs", "memory": "memory", "gpus": "accelerators", "image": "node image"},
    new_nodes=frozenset({"image"}),
    rows=(
        ChangeRow(_NODE, "cpus", "cpus"),
        ChangeRow(_NODE, "memory_mib", "memory", " MiB"),
        ChangeRow(_NODE, "image", "image"),
        ChangeRow(_NODE, r"placeholders.*", "gpus"),
    ),
    lost="what is in their containers",
)


def traits(plan: LocalPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    first = next(iter(plan.nodes), None)
    cpus, memory = (first.cpus, first.memory_mib) if first is not None else (None, None)
    return {
        "cpus": f"{cpus:g}" if cpus else "all of this machine's",
        "memory": f"{memory} MiB" if memory else "all of this machine's",
        **({"gpus": f"{described(plan.gpus)}, simulated"} if plan.gpus.count else {}),
        "image": plan.image,
    }


@dataclass(frozen=True)
class ThisMachine:
    """The one place of local nodes; the machine is the user's."""

    kept: bool
    backend: str = "local"
    price: float | None = 0.0
    words: str = "containers on this machine"


class LocalBackend(Backend[ThisMachine, LocalFacts, LocalPlan]):
    name: ClassVar[str] = "local"
    settings: ClassVar[type[BackendSettings]] = LocalSettings
    explained: ClassVar[Explained] = EXPLAINED

    def candidates(self, request: PlanRequest) -> Sequence[ThisMachine]:
        return (ThisMachine(kept=request.previous.backend == self.name),)

    def facts(self, request: PlanRequest, candidate: ThisMachine) -> LocalFacts:
        return ask(self.settings_of(request).node_image)

    def plan(self, request: PlanRequest, candidate: ThisMachine, facts: LocalFacts) -> LocalPlan:
        texts = scripts(request.fleet, request.folder)
        settings = self.settings_of(request)
        return plan(request.fleet, facts, request.previous, request.scope, texts, settings=settings)

    def deploy(self, request: PlanRequest, candidate: ThisMachine, plan: LocalPlan) -> Deployment:
        return replace(super().deploy(request, candidate, plan), images=(plan.image,), place=None)

    def new_node(self, plan: LocalPlan) -> Mapping[str, Any] | None:
        if not plan.nodes:
            return None
        node = plan.nodes[-1]
        return {
            "cpus": node.cpus,
            "memory_mib": node.memory_mib,
            "arch": plan.arch,
            "blocks": plan.blocks,
            "gpus": plan.gpus.model_dump(),
        }

    def traits(self, request: PlanRequest, candidate: ThisMachine, plan: LocalPlan) -> Traits:
        return traits(plan)

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        """Containers and networks of this machine's Docker."""
        return survey_of(project, marked())

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        """A killed call of our provider leaves none: they go by their mark alone."""
        return remove_marked(snapshot.marks, snapshot.ids) if snapshot.regions(self.name) else ()

    def volumes(self) -> VolumeBackend:
        from orch.components.local.volumes import LocalVolumes

        return LocalVolumes()
