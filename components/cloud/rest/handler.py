"""Resources of clouds that know no idempotency key: the name is all that tells whose something is.

A create looks for its name first; where its answer was lost, it looks for a while before it calls again. The
id is returned as soon as the cloud has said it, so that it is recorded before anything is waited for.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from orch.components.cloud.rest.client import Row
from orch.components.cloud_errors import WAITS, CategoryRefused
from orch.components.marks.marked import cloud_name
from orch.providers.orch.handler import OBSERVED, Inputs, State

AGAIN_S = 300.0
"""How long something may be in use by what is just being deleted, or a cloud may ask to come back later."""

Client = TypeVar("Client", bound=Any)
Machine = TypeVar("Machine")


class NamedHandler(ABC, Generic[Client]):
    """Resources of one kind. Inputs: `name`, `mark` (whose it is), `spec` (what was asked for).

    `settle_s`: how long what a create made without an answer may take to be listed.
    """

    computed: ClassVar[frozenset[str]] = frozenset()
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, client: Callable[[], Client], *, pause_s: float, settle_s: float) -> None:
        self._client, self._pause_s, self._settle_s = client, pause_s, settle_s

    # -- what each kind has in its own way ------------------------------------------------------------------

    @abstractmethod
    def name_of(self, inputs: Inputs) -> str:
        """Its name in the cloud."""

    @abstractmethod
    def own(self, inputs: Inputs) -> str | None:
        """The id of what is there by its name: what a killed call, or a lost answer, left."""

    @abstractmethod
    def begin(self, inputs: Inputs) -> tuple[str, State]:
        """Begin to make it, by one call: its id, and what is known of it by then."""

    @abstractmethod
    def remove(self, resource_id: str) -> None:
        """Delete it, and wait until it is gone. What is gone already is no error."""

    @abstractmethod
    def look(self, resource_id: str, state: State) -> State | None:
        """What is observed of it now, None when it is gone."""

    # -- the protocol ---------------------------------------------------------------------------------------

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        return [(key, "must be set") for key in ("name", "mark", "spec") if inputs.get(key) in (None, "")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        """Nothing of it changes in place."""
        return True

    def create(self, inputs: Inputs) -> tuple[str, State]:
        resource, _ = self.made(inputs)
        return resource, {OBSERVED: {}}

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            found = self.look(resource_id, state)
        except CategoryRefused as refused:
            return {OBSERVED: {"reachable": False, "reason": refused.summary}}
        return None if found is None else {OBSERVED: found}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {OBSERVED: {}}

    def delete(self, resource_id: str, state: State) -> None:
        """Until it is gone, for what it stands on is deleted next, and whatever came late by its name."""
        self.remove(resource_id)
        if {"name", "mark", "spec"} <= state.keys() and (late := self.own(state)) is not None:
            self.remove(late)

    # -- by name ------------------------------------------------------------------------------------------

    def made(self, inputs: Inputs) -> tuple[str, State]:
        """The id, and what the call that makes it said, empty where it was found. Where no answer came it may
        be there, and what it needs may be about to be there: it is looked for before another call."""
        end: float | None = None
        settled = 0.0
        while True:
            found = self.own(inputs)
            if found is not None:
                return found, {}
            if time.monotonic() >= settled:
                try:
                    return self.begin(inputs)
                except CategoryRefused as refused:
                    now = time.monotonic()
                    end = now + AGAIN_S if end is None else end
                    if refused.category not in WAITS or now >= end:
                        raise
                    settled = now + (self._settle_s if refused.category == "transient" else 0.0)
            time.sleep(self._pause_s)


class KindHandler(NamedHandler[Client]):
    """Resources of one kind, whose `spec` is the body of its create, without a name.

    `kind`: as the client knows it; `most_name`: how many characters a name may have, None for as many as it
    needs.
    """

    kind: Any
    most_name: ClassVar[int | None] = None

    def name_of(self, inputs: Inputs) -> str:
        return cloud_name(inputs["name"], inputs["mark"], inputs["spec"], most=self.most_name)

    def own(self, inputs: Inputs) -> str | None:
        """Return the id of what is there by its name. Lost calls that came late may have made several:
        the oldest is kept."""
        found = self._client().named(self.kind, self.name_of(inputs))
        for surplus in found[1:]:
            self._client().delete(self.kind, str(surplus["id"]))
        return str(found[0]["id"]) if found else None

    def remove(self, resource_id: str) -> None:
        self._client().remove(self.kind, resource_id, for_s=AGAIN_S)

    def look(self, resource_id: str, state: State) -> State | None:
        found = self._client().get(self.kind, resource_id)
        return None if found is None else self.observed(found, state)

    def observed(self, found: Row, state: State) -> State:
        """Return what is seen of a resource that is there."""
        return {}

    def until_up(self, resource_id: str, wait: Callable[[], object]) -> None:
        """Wait for one machine alone: for a fleet that keeps what it got. One that does not come up is taken
        back."""
        try:
            wait()
        except CategoryRefused:
            self.remove(resource_id)
            raise


def wait_for_all(
    nodes: Collection[str],
    look: Callable[[], Mapping[str, Machine]],
    late: Callable[[str], CategoryRefused],
    *,
    for_s: float,
    pause_s: float,
) -> dict[str, Machine]:
    """Wait until all machines of these nodes are up: what they are, by node.

    `look`: those that are up; it raises as soon as one does not come up, for the others are of no use alone.
    Raises what `late` makes of the names of those that are not up after `for_s` seconds.
    """
    end = time.monotonic() + for_s
    while True:
        found = look()
        if len(found) == len(nodes):
            return dict(found)
        if time.monotonic() >= end:
            raise late(", ".join(sorted(set(nodes) - set(found))[:8]))
        time.sleep(pause_s)
