"""The backend `local`: nodes are containers on this machine, volumes folders of its Docker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.base import Backend
from orch.components.deployment import Deployment
from orch.components.explain import ChangeRow, Explained, Traits
from orch.components.init_steps import scripts
from orch.components.local.facts import LocalFacts, ask
from orch.components.local.plan import LocalPlan, plan
from orch.components.local.simulated_gpus import described
from orch.components.marks.marked import MarkedResource, Survey, stack_of, survey_of
from orch.components.marks.orphans import StackSnapshot
from orch.components.request import PlanRequest
from orch.components.volumes import FolderVolumes, VolumePlan, VolumeRequest, in_words, state_of
from orch.images.client import connect
from orch.spec.errors import ExitCode, OrchError
from orch.spec.models.backends import entry_of
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.local import LocalSettings
from orch.spec.volume_state import VolumeState

if TYPE_CHECKING:
    import pulumi

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

    def silent_nodes(self, mark: str, names: Collection[str]) -> Mapping[str, str]:
        """Docker knows whether their containers run."""
        from docker.errors import DockerException
        from requests import RequestException

        states: dict[str, str] = {}
        try:
            api = connect(timeout_s=5.0).api
            for row in api.containers(all=True, filters={"label": f"{MARK}={mark}"}):
                container: Any = api.inspect_container(row["Id"])
                states[str(container["Config"]["Hostname"])] = str(container["State"]["Status"])
        except (DockerException, RequestException, OrchError):  # it is asked for an explanation alone
            return {}
        silent = {name: states.get(name) for name in names}
        return {
            name: "its container is gone" if state is None else f"its container is not running ({state})"
            for name, state in silent.items()
            if state != "running"
        }

    def volumes(self) -> VolumeBackend:
        from orch.components.local.backend import LocalVolumes

        return LocalVolumes()


class DockerRefused(OrchError):
    """Docker does not remove something."""

    exit_code = ExitCode.PROVISION


MARK = "orch.stack"
"""The label with the mark; what stands for instances of a rehearsal has another kind of value."""


def marked() -> Iterator[MarkedResource]:
    """Raises DockerUnavailable."""
    api = connect().api
    rows = [
        ("container", row, str(row["Names"][0]).lstrip("/"))
        for row in api.containers(all=True, filters={"label": MARK})
    ]
    rows += [("network", row, str(row["Name"])) for row in api.networks(filters={"label": MARK})]
    for kind, row, name in rows:
        mark = str(row["Labels"][MARK])
        if mark.count("/") >= 2:
            own = name
            if kind == "container":  # `orch-FLEET-SCOPE-INDEX`
                own = f"{stack_of(mark)}-{name.rpartition('-')[2]}"
            yield MarkedResource("local", mark, kind, name, own, "", _time(row.get("Created")), 0.0)


def _time(created: Any) -> datetime | None:
    """Containers tell seconds since the epoch, networks a text."""
    if isinstance(created, int):
        return datetime.fromtimestamp(created).astimezone()
    return None


def remove_marked(marks: Collection[str], recorded: Collection[str]) -> Iterator[str]:
    """Remove what has one of these marks and is not recorded, containers first; what went, as it goes.

    Raises DockerUnavailable, DockerRefused."""
    from docker.errors import APIError, NotFound

    client = connect()
    for each in marked():
        if each.mark not in marks or each.id in recorded:
            continue
        try:
            if each.kind == "container":
                client.containers.get(each.id).remove(force=True, v=True)
            else:
                client.networks.get(each.id).remove()
        except NotFound:  # gone meanwhile
            continue
        except APIError as error:
            raise DockerRefused(
                f"the {each.kind} {each.id} cannot be removed", detail=str(error.explanation or error)
            ) from error
        yield f"{each.kind} {each.id}"


class LocalVolumes(FolderVolumes):
    fixed: ClassVar[Mapping[str, str]] = {"backend": "backend", "volume_id": "volume_id"}

    def plan(self, request: VolumeRequest) -> VolumePlan:
        from orch.images.build import resolve

        volume, previous = request.volume, request.previous
        known = previous.volume_id if previous is not None and not previous.external else None
        folder = volume.volume_id or known or f"{volume.name}-{request.scope}"
        image = resolve(entry_of(request.account.settings, LocalSettings).node_image or "orch/node")
        state = state_of(
            volume,
            "local",
            region=None,
            volume_id=folder,
            external=volume.volume_id is not None,
            size_mib=volume.size_mib,
            monthly=0.0,
        )
        reasons = (
            f"a folder of this machine's Docker, {folder}, which all local nodes share",
            *(
                [f"nothing keeps it below {in_words(volume.size_mib)}: it takes what the disk has"]
                if volume.size_mib is not None
                else []
            ),
        )
        return VolumePlan(state, reasons, partial(_register, state, image), (image,))

    def folder(self, volume: VolumeState) -> str:
        from orch.images.volume_folders import MOUNT

        return f"{MOUNT}/{volume.volume_id}"


def _register(state: VolumeState, image: str) -> pulumi.Output[str]:
    import pulumi

    props: dict[str, Any] = {
        "name": state.volume_id,
        "image": image,
        "external": state.external,
        "size_mib": state.size_mib,
    }
    opts = pulumi.ResourceOptions(protect=state.protect and not state.external)
    return pulumi.CustomResource("orch:local:Volume", state.name, props, opts).id
