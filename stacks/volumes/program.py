"""The Pulumi program of a volume: the same for `orch up` and for `pulumi up` by hand."""

from __future__ import annotations

from pathlib import Path

from orch import __version__
from orch.components.registry.volumes import plan_volume
from orch.components.request import whole
from orch.components.volumes import STACK, VolumePlan, VolumeRequest
from orch.spec.errors import OrchError
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.state import SCHEMA
from orch.spec.volume_state import VolumeState
from orch.stacks.engine.process import Program, without_source_positions
from orch.stacks.project.project import find, scope_of
from orch.stacks.pulumi.accounts import require_own, require_planned
from orch.stacks.record.fleets import find_model
from orch.stacks.record.volume_attaching import account_of
from orch.stacks.stack.state import StackState, refuse_newer


def volume_program(plan: VolumePlan) -> Program:
    """The program that the engine runs for a volume."""

    def run() -> None:
        register_volume(plan)

    return run


def register_volume(plan: VolumePlan) -> None:
    """Register the resource of a volume, and export its state."""
    import pulumi

    with without_source_positions():
        volume_id = plan.register()
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export(
        "volume",
        volume_id.apply(lambda known: plan.state.model_copy(update={"volume_id": known}).model_dump()),
    )


def register_by_hand(root: Path, name: str, stack_name: str) -> None:
    """Register a volume for a `pulumi up` by hand: that of the project at `root`. Raises pulumi.RunError."""
    import pulumi

    try:
        document, volume = find_model(root, name, Volume, "volume")
        document.effective()
        answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": stack_name}).value or {}
        recorded = refuse_newer(answer.get("outputs") or {}).get("volume")
        previous = VolumeState.model_validate(whole(recorded)) if recorded else None
        project = find(root)
        stack = StackState(project, f"{STACK}{name}")
        require_own(stack)
        request = VolumeRequest(
            volume,
            account_of(project, volume.backend),
            previous,
            scope_of(project),
            dict(project.tags),
        )
        try:
            plan = plan_volume(request)
        except PlanError as error:
            raise error.placed(document) from error
        require_planned(stack, volume.backend, plan.account)
    except OrchError as error:
        raise pulumi.RunError(error.text()) from error
    register_volume(plan)
