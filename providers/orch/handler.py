"""What a resource of this provider is: a handler of plain dictionaries.

Handlers are synchronous and may block; `plugin.py` calls them in worker threads. They raise `ProviderError`
for what a user
can act on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from orch.runner.preparation.init_steps import AT_IT, trouble
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    # Where nodes of a rehearsal are made, Google's libraries are loaded too: these do not go together.
    from pulumi.provider.experimental.property_value import PropertyValue

Inputs = dict[str, Any]
State = dict[str, Any]

OBSERVED = "observed"
"""The output that holds what was last seen, under the names of the inputs it is compared with."""


class ProviderError(OrchError):
    """A resource could not be made, changed or removed."""

    exit_code = ExitCode.PROVISION


class LeftBehind(ProviderError):
    """A resource was given up without being taken away: it is removed from the record, and that is told."""


class StepFailed(ProviderError):
    """A step of `init` failed on a node."""


def step_error(node: str, where: str, exit_code: int, said: str, errors: str) -> ProviderError:
    """The error of steps of `init` that did not end well: StepFailed, but where another call is at them."""
    why, last = trouble(exit_code, said, errors)
    if exit_code == AT_IT:
        hint = "wait until they have ended, then run `orch up` again: it goes on from there"
        return ProviderError(f"{node}: {why}", where=where, detail=last, hint=hint, code="ORCH391")
    hint = "mend the step or the node, then run `orch up` again"
    return StepFailed(f"{node}: {why}", where=where, detail=last, hint=hint, code="ORCH391")


@dataclass(frozen=True)
class Difference:
    """One property whose value differs. `drifted`: the file did not change, the world did."""

    path: str
    replaces: bool
    drifted: bool


class Handler(Protocol):
    """A resource type. `computed` are the outputs beyond the inputs, `secrets` those of them that are
    secret. `tools` are inputs that say how to look at the resource: another value is no change of it."""

    computed: ClassVar[frozenset[str]]
    secrets: ClassVar[frozenset[str]]
    tools: ClassVar[frozenset[str]]

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        """Failures as (property, reason). Unknown values are not to be judged."""
        ...

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        """Return True if this change of an input cannot be made in place."""
        ...

    def create(self, inputs: Inputs) -> tuple[str, State]:
        """The id and the outputs beyond the inputs. Repeating it with the same name must not make a second
        one."""
        ...

    def read(self, resource_id: str, state: State) -> State | None:
        """The outputs as they are now, or None when it is gone. Never raises for what it cannot reach: that
        is a value."""
        ...

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        """Bring what differs (file or drift) to `inputs`; the new outputs beyond the inputs."""
        ...

    def delete(self, resource_id: str, state: State) -> None:
        """Remove it. What is gone already is no error. Raises LeftBehind where that cannot be known."""
        ...


def differences(handler: Handler, state: State, inputs: Inputs) -> list[Difference]:
    """Inputs that differ from what was registered, or from what was observed."""
    observed: dict[str, Any] = state.get(OBSERVED) or {}
    result: list[Difference] = []
    for key, value in inputs.items():
        if key in handler.tools:
            continue
        changed = key not in state or state[key] != value
        drifted = key in observed and observed[key] != value and not changed
        if changed or drifted:
            replaces = handler.replaces(key, observed.get(key, state.get(key)), value)
            paths = _entries(key, state.get(key), value) if changed else [key]
            result += [Difference(path, replaces, drifted) for path in paths]
    result += [
        Difference(key, handler.replaces(key, state[key], None), False)
        for key in state
        if key not in inputs and key not in handler.computed and key != OBSERVED
    ]
    return result


def now_secret(old: Mapping[str, PropertyValue], new: Mapping[str, PropertyValue]) -> list[Difference]:
    """Values that a former version recorded in clear and this one hides: recording them is a change too."""
    return [
        Difference(path, replaces=False, drifted=False)
        for key, value in new.items()
        if key in old
        for path in _uncovered(key, old[key], value)
    ]


def _uncovered(path: str, old: PropertyValue, new: PropertyValue) -> Iterator[str]:
    if old.is_secret:
        return
    if new.is_secret:
        yield path
    elif isinstance(old.value, Mapping) and isinstance(new.value, Mapping):
        for name, value in new.value.items():
            if name in old.value:
                yield from _uncovered(_below(path, name), old.value[name], value)


def _entries(key: str, old: Any, new: Any) -> list[str]:
    """Return the entries of a map that differ, as paths of the engine; the whole unless both are maps."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [key]
    before, after = cast("State", old), cast("State", new)
    names = sorted({*before, *after})
    return [_below(key, name) for name in names if before.get(name) != after.get(name)] or [key]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if _PLAIN.fullmatch(name) else f'{path}["{_QUOTED.sub(_escaped, name)}"]'


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r'[\\"]')
