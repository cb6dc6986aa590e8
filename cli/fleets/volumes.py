"""What `preview`, `up`, `down` and `drift` do with the volumes of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from orch.cli.errors import print_json, say, tell
from orch.cli.output.volumes import SCHEMA, outcome_json, outcome_lines

if TYPE_CHECKING:
    from orch.spec.loader.load import Document
    from orch.spec.models import Volume
    from orch.stacks.errors import StackError
    from orch.stacks.project.project import Project
    from orch.stacks.volumes.operations import VolumeOutcome

    Volumes = Iterable[tuple[Project, Document, Volume]]

T = TypeVar("T")


def preview(volumes: Volumes, *, as_json: bool, verbose: bool) -> bool:
    """Show what `up` would do to volumes. Returns whether anything is to do."""
    pending = False
    for project, document, volume in volumes:
        outcome = _previewed(project, document, volume, as_json=as_json)
        pending = pending or outcome.pending
        if as_json:
            print_json(outcome_json(outcome))
            continue
        for line in outcome_lines(outcome, verbose=verbose):
            say(line)
    return pending


def bring_up(volumes: Volumes, *, yes: bool, as_json: bool, verbose: bool) -> None:
    """Bring volumes up, after asking unless `yes`."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.volumes.operations import up_volume

    for project, document, volume in volumes:
        if not yes:
            need_terminal("orch up FILE --yes", project)
            outcome = _previewed(project, document, volume, as_json=as_json)
            for line in outcome_lines(outcome, verbose=verbose):
                tell(line)
            if not outcome.pending:
                continue
            lost = ", and lose what is on it" if outcome.loses_data else ""
            confirm(f"Bring up the volume {volume.name}{lost}?")
        with watching(as_json=as_json) as listener:
            outcome = _placed(
                document, volume.name, lambda p=project, v=volume, li=listener: up_volume(p, v, li)
            )
        if as_json:
            print_json(outcome_json(outcome))
        else:
            say(f"volume {volume.name}: {counts(outcome.changes, done=True)}")


def remove_those_of(volumes: Volumes, *, yes: bool, as_json: bool) -> None:
    """Delete the volumes of a file that are not protected. Raises StackError when one is."""
    from orch.cli.output.review import confirm, need_terminal
    from orch.stacks.record.volumes import exists, is_protected, is_recorded, stack_of, volume_of

    protected: list[str] = []
    for project, _, volume in volumes:
        stack = stack_of(project, volume.name)
        if not stack.exists:
            (tell if as_json else say)(f"volume {volume.name}: not up, nothing to delete")
            continue
        if is_protected(stack):
            protected.append(volume.name)
            continue
        if not yes:
            need_terminal("orch down FILE --yes", project)
            external = is_recorded(stack) and exists(stack) and volume_of(stack).external
            confirm(f"Delete the volume {volume.name}{'' if external else ' and all that is on it'}?")
        delete(project, volume.name, as_json=as_json)
    if protected:
        raise protected_error(*protected)


def protected_error(first: str, *others: str) -> StackError:
    """The error for volumes that are deleted by their names alone."""
    from orch.stacks.errors import StackError

    return StackError(
        f"{'volumes' if others else 'volume'} {', '.join((first, *others))} stayed: protected",
        detail="`--yes` alone deletes no protected volume",
        hint=f"`orch volume delete {first} --confirm {first}` deletes it with all that is on it",
        code="ORCH348",
    )


def delete(project: Project, name: str, *, as_json: bool) -> None:
    """Delete a volume that nobody uses. Raises Conflict (ORCH386), NoSuchFleet, StackError."""
    from orch.cli.output.plan import counts
    from orch.cli.output.progress import watching
    from orch.stacks.volumes.operations import down_volume, require_unused

    require_unused(project, name)
    with watching(as_json=as_json) as listener:
        outcome = down_volume(project, name, listener)
    if as_json:
        print_json(outcome_json(outcome))
    else:
        say(f"volume {name}: {counts(outcome.changes, done=True)}")


def drift(volumes: Volumes, *, as_json: bool, record: bool) -> bool:
    """Show the drift of the volumes of a file that are up; whether there is any. `record`: it is recorded."""
    from orch.cli.output.progress import watching
    from orch.review.tree import drift_lines
    from orch.stacks.volumes.operations import drift_of_volume

    any_drift = False
    for project, _, volume in volumes:
        with watching(as_json=as_json) as listener:
            drifts = drift_of_volume(project, volume.name, listener, record=record)
        any_drift = any_drift or bool(drifts)
        if as_json:
            data = [item.as_json() for item in drifts]
            print_json({"schema": SCHEMA, "volume": volume.name, "drift": data})
            continue
        say(f"volume {volume.name}: {'drifted' if drifts else 'as registered'}")
        for line in drift_lines(drifts):
            say(line)
    return any_drift


def _previewed(project: Project, document: Document, volume: Volume, *, as_json: bool) -> VolumeOutcome:
    from orch.cli.output.progress import watching
    from orch.spec.diagnostics import render_human
    from orch.stacks.volumes.operations import preview_volume

    if warnings := document.effective():
        tell(render_human(warnings))
    with watching(as_json=as_json) as listener:
        return _placed(document, volume.name, lambda: preview_volume(project, volume, listener))


def _placed(document: Document, name: str, work: Callable[[], T]) -> T:
    """The result of some work on a volume of a file. Errors of a plan get their place in the file, and what
    was stopped tells how it goes on."""
    from orch.spec.findings import PlanError
    from orch.stacks.errors import Interrupted
    from orch.stacks.record.volumes import hint_to_continue

    try:
        return work()
    except PlanError as error:
        raise error.placed(document) from error
    except Interrupted as error:
        error.hint = hint_to_continue(name, str(document.file))
        raise
