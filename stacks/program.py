"""The Pulumi program: the same for `orch up` and for `pulumi up` by hand.

By hand, `__main__.py` of the project calls `main`: the stack's name is the fleet's, found among the project's
YAML files. A program reads its own stack's recorded outputs through the engine, also while an update holds
the lock (measured).
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from orch import __version__
from orch.components.deployment import Deployment, SharedNetworks
from orch.components.registry import compile_fleet
from orch.components.request import PlanRequest, PriorState
from orch.components.volumes import STACK as VOLUME_STACK
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError
from orch.spec.models import Fleet, Volume
from orch.spec.state import SCHEMA
from orch.stacks.errors import NoSuchFleet
from orch.stacks.lockfile import read_lock
from orch.stacks.project import Project, find
from orch.stacks.secrets import with_secrets
from orch.stacks.state import deployment, refuse_newer
from orch.stacks.state import outputs as state_outputs
from orch.stacks.variables import values_of, without_values

if TYPE_CHECKING:
    from orch.spec import Document

Named = TypeVar("Named", Fleet, Volume)
SKIPPED_FOLDERS = {".git", ".orch", ".venv", "node_modules", "__pycache__"}


def scope_of(project: Project) -> str:
    """Six hex digits that distinguish this project's resources from those of a project of the same name: in
    another folder, on another machine, or with another state.

    The first `up` records them.
    """
    try:
        machine = Path("/etc/machine-id").read_text("ascii").strip()
    except OSError:
        machine = ""
    words = f"{socket.gethostname()} {machine} {project.root} {project.state_url}"
    return hashlib.sha256(words.encode()).hexdigest()[:6]


@contextmanager
def without_source_positions() -> Iterator[None]:
    """Register resources without their source positions, which are one line of orch for all nodes.

    The SDK reads the whole call stack for each resource, and the engine writes it with every state (2.5 KB a
    node, measured). It would also show folders of this machine to readers of the state.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 1
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before


def register(compiled: Deployment) -> None:
    """Register the resources of a plan, and export what a runner needs."""
    import pulumi

    for problem in compiled.problems:
        pulumi.log.warn(problem.text())
    for warning in compiled.warnings:
        pulumi.log.warn(f"{warning.node}: {warning.text}")
    with without_source_positions():
        state, identity = compiled.register()
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export("fleet", state.apply(without_values))
    pulumi.export("env", state.apply(_encrypted))
    pulumi.export("pins", compiled.pins)
    pulumi.export("traits", dict(compiled.traits))
    if identity is not None:
        pulumi.export("identity", pulumi.Output.secret(identity))


def _encrypted(state: dict[str, Any]) -> Any:
    """The variables of a fleet as a secret; {} for none, so that reading them needs no key."""
    import pulumi

    values = values_of(state)
    return pulumi.Output.secret(values) if values else values


def program(compiled: Deployment) -> Callable[[], Awaitable[None]]:
    """The program that the engine runs for `orch`."""

    async def run() -> None:
        register(compiled)
        # Once registrations run, the SDK waits for one after the other. Before, it would check every output
        # of every resource each time one resolves (measured: quadratic in the number of nodes).
        await asyncio.sleep(0)

    return run


def shared_program(shared: SharedNetworks) -> Callable[[], None]:
    """The program that the engine runs for networks that fleets share."""

    def run() -> None:
        import pulumi

        with without_source_positions():
            shared.register()
        pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
        pulumi.export("pins", dict(shared.pins))

    return run


def main(root: Path | str = ".") -> None:
    """Run the program of the current stack for the project at `root`; its `__main__.py` calls this."""
    import pulumi

    folder = Path(root).absolute()
    stack_name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    if pulumi.get_stack().startswith(VOLUME_STACK):
        from orch.stacks.volumes import register_by_hand

        register_by_hand(folder, pulumi.get_stack().removeprefix(VOLUME_STACK), stack_name)
        return
    try:
        document, fleet = find_fleet(folder, pulumi.get_stack())
        document.effective()
        answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": stack_name}).value or {}
        outputs = refuse_newer(answer.get("outputs") or {})
        try:
            project = find(folder)
            compiled = compile_fleet(
                PlanRequest(
                    with_secrets(project, fleet),
                    project.filled_backends(),
                    replace(PriorState.of_outputs(outputs), locked=read_lock(project.lock_file, fleet.name)),
                    scope_of(project),
                    root=folder,
                    folder=document.directory.absolute(),
                    stack=lambda name: PriorState.of_outputs(state_outputs(deployment(project, name))),
                    tags=project.tags,
                )
            )
            if compiled.shared is not None and not deployment(project, compiled.shared.stack):
                raise NoSuchFleet(
                    f"the networks '{compiled.shared.name}' are not there",
                    hint=f"`orch up` makes them; by hand the stack {compiled.shared.stack} comes first",
                    code="ORCH353",
                )
        except PlanError as error:
            raise error.placed(document) from error
    except OrchError as error:
        raise pulumi.RunError(error.text()) from error  # without a stack trace
    register(compiled)


def find_fleet(root: Path, name: str) -> tuple[Document, Fleet]:
    """The one fleet called `name` in the YAML files under `root`.

    Raises NoSuchFleet when there is none, or several.
    """
    return find_model(root, name, Fleet, "fleet")


def find_model(root: Path, name: str, model: type[Named], noun: str) -> tuple[Document, Named]:
    """The one document of a kind with this name in the YAML files under `root`. Raises as `find_fleet`."""
    from orch.spec import load_paths
    from orch.spec.defaults import Common

    settings = root / "orch.yml"
    common = Common.in_file(str(settings)) if settings.is_file() else None
    matches: list[tuple[Document, Named]] = []
    for path in sorted([*root.rglob("*.yml"), *root.rglob("*.yaml")]):
        if SKIPPED_FOLDERS & set(path.relative_to(root).parts) or not _mentions(noun, path):
            continue
        loaded = load_paths([path], common=lambda _: common)
        if loaded.failed:
            continue
        matches += [(document, found) for document, found in loaded.of(model) if found.name == name]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise NoSuchFleet(
            f"no valid YAML file here describes the {noun} {name}",
            where=str(root),
            hint=f"the stack's name is the {noun}'s: select another stack, or write `name: {name}`",
        )
    raise NoSuchFleet(
        f"{len(matches)} files describe the {noun} {name}",
        where=", ".join(str(document.file.relative_to(root)) for document, _ in matches),
        hint=f"one stack belongs to one {noun}: rename one of them",
    )


def _mentions(noun: str, path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= 1 << 20 and noun.encode() in path.read_bytes()
    except OSError:
        return False
