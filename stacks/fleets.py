"""The fleets of a project that are up, and the FleetState of each; who names another is told what is up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orch.components.request import whole
from orch.runner.private import private_folder, write_private
from orch.spec.grammar.values import shown
from orch.spec.state import SCHEMA, Access, FleetState, NodeState
from orch.spec.suggest import few, hint_for
from orch.stacks.errors import NoSuchFleet, StackError
from orch.stacks.project import Project, find, is_stack_name
from orch.stacks.state import StackState, deployment, outputs, secret_output, stacks


def known_fleets(project: Project) -> dict[str, StackState]:
    """The fleets this project has brought up, by name, sorted; the state of each has been read."""
    found = {name: StackState(project, name) for name in stacks(project)}
    return {name: stack for name, stack in found.items() if "fleet" in stack.outputs}


def is_former(stack: StackState) -> bool:
    """Whether a former version recorded the fleet, with less than this one knows."""
    fleet = stack.outputs.get("fleet") or {}
    return fleet.get("schema_version", SCHEMA) < SCHEMA


def fleet_state(project: Project, name: str) -> FleetState:
    """A fleet as it was last brought up, its private key put in place under `.orch/keys`.

    Raises NoSuchFleet when it is not up, Conflict when a newer orch wrote it.
    """
    return fleet_of(StackState(project, name))


def fleet_of(stack: StackState) -> FleetState:
    """The fleet of a stack. Raises as `fleet_state`."""
    project, name, found = stack.project, stack.name, require_up(stack)
    try:
        state = FleetState.model_validate(whole(found["fleet"]))
    except ValidationError as error:
        raise StackError(
            f"the recorded state of {name} is not one that orch wrote",
            where=str(project.checkpoint(name) or project.state_url),
            detail=few((f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()), 3),
            hint="`orch up` with its file records it anew",
            code="ORCH351",
        ) from error
    there = {node["name"] for node in stack.nodes}
    nodes = tuple(node for node in state.nodes if node.name in there)
    if found.get("identity") is not None:
        identity = str(_identity(project, name, state))
        nodes = tuple(_with(node, node.access.with_key(identity)) for node in nodes)
    return project.reached(
        state.model_copy(
            # Key files as they lie here: the state says them relative to the project's root.
            update={"nodes": tuple(_with(node, node.access.located(project.root)) for node in nodes)}
        )
    )


def _with(node: NodeState, access: Access) -> NodeState:
    return node.model_copy(update={"access": access})


def require_up(stack: StackState) -> dict[str, Any]:
    """The outputs of a fleet's stack. Raises NoSuchFleet when it is not up."""
    if "fleet" not in stack.outputs:
        raise not_up(stack.project, stack.name)
    return stack.outputs


def not_up(project: Project, name: str, *, removing: bool = False) -> NoSuchFleet:
    """The error of a fleet that is not there; with `removing`, of one that was to be removed."""
    others = list(known_fleets(project))
    shown_name = name if is_stack_name(name) else shown(name)
    ending = ": there is nothing to remove" if removing else ""
    return NoSuchFleet(
        f"the fleet {shown_name} is not up in this project{ending}",
        where=str(project.root),
        detail=f"up here: {', '.join(others)}" if others else "no fleet is up here",
        hint=_elsewhere(project, name) or _instead(name, others, removing=removing),
        code="ORCH353",
    )


def _elsewhere(project: Project, name: str) -> str | None:
    """Whether a fleet that is not up here is up in the rehearsal, or the other way round."""
    if project.rehearsal:
        there, hint = find(project.root), "it is up outside the rehearsal: leave `--rehearse` out"
        if there.local_state is None:
            return None  # somebody else's server is not asked for the sake of a hint
    else:
        there = replace(project, state_url=f"file://{project.rehearsed / 'state'}")
        hint = "it is up in the rehearsal: add `--rehearse`"
    return hint if "fleet" in outputs(deployment(there, name)) else None


def _instead(name: str, others: Sequence[str], *, removing: bool) -> str:
    if close := hint_for(name, others):
        return close
    if removing:
        return "name one that is up" if others else "`orch fleet` lists what is up"
    return f"{'name one that is up, or ' if others else ''}bring it up first: `orch up fleet.yml`"


def _identity(project: Project, stack: str, state: FleetState) -> Path:
    """The client's private key file.

    Taken out of the encrypted state when it is not there, or is of a fleet before.
    """
    key = project.dot / "keys" / stack
    mark = key.with_name(f"{stack}.of")
    generation = state.nodes[0].access.machine if state.nodes else ""
    if key.exists() and mark.exists() and mark.read_text() == generation:
        return key
    private = secret_output(project, stack, "identity", "the key")
    private_folder(key.parent)
    write_private(key, private.strip() + "\n")
    write_private(mark, generation)
    return key


def forget_identity(project: Project, stack: str) -> None:
    key = project.dot / "keys" / stack
    for file in (key, key.with_name(f"{stack}.of")):
        file.unlink(missing_ok=True)
