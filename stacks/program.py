"""The Pulumi program of `pulumi up` by hand: it registers what `orch up` does (`plans/program.py`).

By hand, `__main__.py` of the project calls `main`: the stack's name is the fleet's, found among the project's
YAML files. A program reads its own stack's recorded outputs through the engine, also while an update holds
the lock (measured).
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from orch.components.file_systems import check
from orch.components.lifetime import CREATED, lifetime, over
from orch.components.node_count import is_range
from orch.components.registry.planning import compile_fleet, ended_nodes
from orch.components.request import PlanRequest, PriorState
from orch.components.volumes import STACK as VOLUME_STACK
from orch.spec.diagnostics import Severity
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError, PlanErrors
from orch.stacks.engine.shims import PROJECT_HOOK
from orch.stacks.errors import NoSuchFleet
from orch.stacks.plans.program import register
from orch.stacks.project.lockfile import read_lock
from orch.stacks.project.project import Project, find, scope_of
from orch.stacks.pulumi.accounts import require_own
from orch.stacks.record.fleets import find_fleet
from orch.stacks.secrets.values import backends_with_secrets, with_secrets
from orch.stacks.stack.state import REASONS, StackState, deployment, refuse_newer
from orch.stacks.stack.state import outputs as state_outputs
from orch.stacks.volumes.program import register_by_hand


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
