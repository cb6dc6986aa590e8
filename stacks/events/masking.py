"""Masks values of a plan for output: secrets are hidden on both sides of a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How the engine writes a value that only exists after `up`."""

SECRET_MARK = "4dabf18193072939515e22adb298388d"
"""The key that marks a wrapped value (a secret, an asset) in engine events and states."""

KNOWN_LATER = "(known after up)"
HIDDEN = "(secret)"

# The engine's own word for a secret in its events.
_SECRET_IN_EVENT = "[secret]"


def is_secret(value: Any) -> bool:
    return value == _SECRET_IN_EVENT or (isinstance(value, Mapping) and SECRET_MARK in value)


def holds_secret(value: Any) -> bool:
    """Return True if a secret is anywhere in a value."""
    if is_secret(value):
        return True
    if isinstance(value, Mapping):
        return any(map(holds_secret, cast("Mapping[str, Any]", value).values()))
    return isinstance(value, list) and any(map(holds_secret, cast("list[Any]", value)))


def masked(value: Any) -> Any:
    """A value for output: secrets are hidden, unknown values say that they are."""
    if is_secret(value):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: masked(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list):
        return [masked(item) for item in cast("list[Any]", value)]
    if isinstance(value, str) and UNKNOWN in value:
        return KNOWN_LATER
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def masked_pair(before: Any, after: Any) -> tuple[Any, Any]:
    """Both sides of a change for output: a secret on one side is one on the other side too.

    A value that becomes a secret was in clear text before, in a former version's state: it is hidden too.
    """
    if is_secret(before) or is_secret(after):
        return _hidden(before), _hidden(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, Any]", before), cast("Mapping[str, Any]", after)
        pairs = {key: masked_pair(old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new))}
        return {key: pairs[key][0] for key in old}, {key: pairs[key][1] for key in new}
    if isinstance(before, list) and isinstance(after, list):
        olds, news = cast("list[Any]", before), cast("list[Any]", after)
        pairs_of_items = [masked_pair(old, new) for old, new in zip(olds, news, strict=False)]
        return (
            [*(old for old, _ in pairs_of_items), *map(masked, olds[len(pairs_of_items) :])],
            [*(new for _, new in pairs_of_items), *map(masked, news[len(pairs_of_items) :])],
        )
    return masked(before), masked(after)


def _hidden(value: Any) -> Any:
    return value if value is None else HIDDEN
