"""Bringing a fleet up where there is room: its places are tried in turn, all of its nodes made or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from orch.components.backends import Compiled, Place
from orch.components.plan import CloudAnswer
from orch.spec.errors import OrchError
from orch.spec.models.fleet import Nodes
from orch.stacks.calls import Call, Listener, Note, engine
from orch.stacks.changes import name_of
from orch.stacks.errors import EngineFailed, NoCapacity, StackError
from orch.stacks.program import program
from orch.stacks.project import Project
from orch.stacks.states import deployment
from orch.stacks.wishes import Wish, compile_for, nodes_up


@dataclass(frozen=True)
class Tried:
    """A place that did not do, and why."""

    place: str
    reason: str


def bring_up(project: Project, wish: Wish, first: Compiled, listener: Listener) -> tuple[Compiled, Call]:
    """The plan that was carried out, and the engine's call that did it.

    A place without room is left as it was found before the next one is tried. What trying elsewhere cannot
    mend (quota, permission, parameters) stops at once. A cluster that is up is never moved: growth that does
    not fit is taken back.

    Raises NoCapacity with every place tried, StackError, Interrupted.
    """
    before = nodes_up(project, wish.name)
    tried: list[Tried] = []
    for place in [Place(first.place or "", lambda: first), *first.elsewhere]:
        try:
            compiled = place.compile()
        except OrchError as refused:
            if not tried:
                raise
            tried.append(Tried(place.words, refused.summary))
            continue
        if first.whole:
            listener(Note(f"trying {place.words}"))
        call = Call(listener, planning=False, apart=compiled.apart)
        try:
            engine(project, wish.name, words(compiled), call, program(compiled))
        except EngineFailed as failed:
            answer = _answer(compiled, failed)
            if compiled.whole:
                _take_back(project, wish, before, listener)
            if answer is None:
                raise
            if not answer.elsewhere or not compiled.whole:
                raise _refused(wish, answer, failed, whole=compiled.whole) from failed
            tried.append(Tried(place.words, answer.reason))
            if before:
                raise _no_room_to_grow(wish, len(before), tried) from failed
            listener(Note(f"no room there: {answer.reason}"))
        else:
            return compiled, call
    raise _no_room(wish, tried)


def words(compiled: Compiled) -> list[str]:
    """The engine's arguments for bringing a plan up."""
    found = ["up", "--yes", "--skip-preview", *parallel(compiled)]
    return [*found, "--continue-on-error"] if compiled.apart else found


def parallel(compiled: Compiled) -> list[str]:
    """The engine's argument for how much of a plan is worked on at once."""
    return ["--parallel", str(compiled.parallel)] if compiled.parallel else []


def _answer(compiled: Compiled, failed: EngineFailed) -> CloudAnswer | None:
    """What the errors come to: one that trying elsewhere cannot mend outweighs the others."""
    answers = [compiled.answer(text) for text in failed.errors.values() if text]
    known = [answer for answer in answers if answer is not None]
    return next((each for each in known if not each.elsewhere), next(iter(known), None))


def _take_back(project: Project, wish: Wish, before: Sequence[str], listener: Listener) -> None:
    """Leave what was there before: nothing, or the fleet with the nodes it had."""
    call = Call(listener, planning=False)
    try:
        if not before:
            engine(project, wish.name, ["destroy", "--yes", "--skip-preview"], call)
            return
        count = len(before)
        fleet = wish.fleet.model_copy(update={"nodes": Nodes(min=count, target=count, max=count)})
        compiled = compile_for(project, replace(wish, fleet=fleet))
        engine(project, wish.name, words(compiled), call, program(compiled))
    except EngineFailed as failed:
        left = ", ".join(_left(project, wish.name, before))
        raise StackError(
            f"what was begun of the fleet {wish.name} could not be taken back whole",
            detail=f"{failed.detail}\nleft: {left}",
            hint=f"`orch down {wish.name}` removes the rest; look at the cloud's console if it does not",
            code="ORCH326",
        ) from failed


def _left(project: Project, stack: str, before: Sequence[str]) -> Iterator[str]:
    """Resources of the cloud that are recorded still, each with its id."""
    for resource in (deployment(project, stack) or {}).get("resources") or ():
        if resource.get("custom") and resource.get("id") and not resource["type"].startswith("pulumi:"):
            name = name_of(resource["urn"])
            if name not in before:
                yield f"{name} ({resource['id']})"


def _refused(wish: Wish, answer: CloudAnswer, failed: EngineFailed, *, whole: bool) -> StackError:
    return StackError(
        f"the fleet {wish.name} could not be brought up: {answer.reason}",
        detail=f"{failed.detail}\n{'nothing of it is left' if whole else 'what was made before is kept'}",
        hint=answer.hint,
        code=answer.code,
    )


def _no_room(wish: Wish, tried: Sequence[Tried]) -> NoCapacity:
    return NoCapacity(
        f"there is no room for the fleet {wish.name} in any of {len(tried)} places; nothing of it is left",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint="try later, or widen `regions`, `availability_zones`, `instance_types` or `max_price`",
        code="ORCH325",
    )


def _no_room_to_grow(wish: Wish, count: int, tried: Sequence[Tried]) -> NoCapacity:
    return NoCapacity(
        f"there is no room for more nodes beside the {count} of the fleet {wish.name}; it is as it was",
        detail="\n".join(f"{each.place}: {each.reason}" for each in tried),
        hint="try later, or bring up a second fleet elsewhere: a cluster that is up is not moved",
        code="ORCH325",
    )
