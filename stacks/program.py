"""The Pulumi program: the same for `orch up` and for `pulumi up` by hand.

By hand, `__main__.py` of the project calls `main`: the stack's name is the fleet's, found among the project's
YAML files. A program reads its own stack's recorded outputs through the engine, also while an update holds
the lock (measured).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch import __version__
from orch.components.deployment import Deployment, SharedNetworks
from orch.components.file_systems import check
from orch.components.lifetime import CREATED, lifetime, over
from orch.components.node_count import is_range
from orch.components.registry import compile_fleet, ended_nodes
from orch.components.request import PlanRequest, PriorState
from orch.components.volumes import STACK as VOLUME_STACK
from orch.spec.diagnostics import Severity
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError, PlanErrors
from orch.spec.state import SCHEMA, WATCHED
from orch.stacks.errors import NoSuchFleet
from orch.stacks.fleets import find_fleet
from orch.stacks.lockfile import read_lock
from orch.stacks.project import Project, find, scope_of
from orch.stacks.pulumi.accounts import require_own
from orch.stacks.pulumi.process import without_source_positions
from orch.stacks.pulumi.shims import PROJECT_HOOK
from orch.stacks.secrets.values import backends_with_secrets, with_secrets
from orch.stacks.state import HEALTH, REASONS, SPARES, StackState, deployment, refuse_newer
from orch.stacks.state import outputs as state_outputs
from orch.stacks.variables import values_of, without_values

if TYPE_CHECKING:
    pass


def register(compiled: Deployment, explained: Sequence[str] | None = None) -> None:
    """Register the resources of a plan, and export what a runner needs.

    `explained`: the explanations of the last `orch up`, which `pulumi` by hand leaves as they are.
    """
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
    if compiled.health != WATCHED:
        pulumi.export(HEALTH, compiled.health.model_dump())
    if compiled.spares is not None:
        pulumi.export(SPARES, compiled.spares.model_dump())
    pulumi.export(REASONS, list(compiled.reasons if explained is None else explained))
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


def project_of_environment(folder: Path) -> Project:
    """The project of a folder, on the clouds that the environment is for. Raises ProjectError."""
    project = find(folder)
    module, _, name = os.environ.get(PROJECT_HOOK, "").partition(":")
    return getattr(import_module(module), name)(project) if module else project


def main(root: Path | str = ".") -> None:
    """Run the program of the current stack for the project at `root`; its `__main__.py` calls this."""
    import pulumi

    folder = Path(root).absolute()
    stack_name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    if pulumi.get_stack().startswith(VOLUME_STACK):
        from orch.stacks.volumes.program import register_by_hand

        register_by_hand(folder, pulumi.get_stack().removeprefix(VOLUME_STACK), stack_name)
        return
    try:
        document, fleet = find_fleet(folder, pulumi.get_stack())
        document.effective()
        answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": stack_name}).value or {}
        outputs = refuse_newer(answer.get("outputs") or {})
        try:
            project = project_of_environment(folder)
            recorded = StackState(project, fleet.name)
            require_own(recorded)
            previous = replace(
                PriorState.of_outputs(outputs),
                locked=read_lock(project.lock_file, fleet.name),
                # Only of the same state: by hand, the engine may be logged in elsewhere.
                existing_nodes=recorded.node_names
                if is_range(fleet.nodes) and recorded.outputs.get("pins") == outputs.get("pins")
                else None,
            )
            created = int(previous.pins.get(CREATED) or time.time())
            ending = lifetime(fleet, created)
            if ending is not None and ending.ends <= time.time():
                raise PlanErrors([replace(over(fleet.name, ending.ends), severity=Severity.ERROR)])
            wanted = PlanRequest(
                with_secrets(project, fleet),
                project.backends,
                previous,
                scope_of(project),
                root=folder,
                folder=document.directory.absolute(),
                session=project.session,
                stack=lambda name: PriorState.of_outputs(state_outputs(deployment(project, name))),
                tags=project.tags,
                created=created,
            )
            settings = backends_with_secrets(project, wanted.backends)
            ended = ended_nodes(previous, settings, project.session)
            compiled = compile_fleet(
                replace(wanted, settings=settings, previous=replace(previous, ended=ended))
            )
            compiled = check(fleet, previous, compiled, ())
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
    register(compiled, outputs.get(REASONS))
