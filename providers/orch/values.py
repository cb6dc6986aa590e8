"""Pulumi's wire values as plain Python ones, and back.

Unknown values (a preview's not yet created outputs) become `UNKNOWN`; secrets lose their mark on the way in
and get it
again on the way out by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pulumi.provider.experimental.property_value import Computed, PropertyValue
from pulumi.runtime import rpc

Plain = Any
"""None, bool, int, float, str, list or dict of the same, or UNKNOWN."""


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


def to_plain(value: PropertyValue) -> Plain:
    inner = value.value
    if isinstance(inner, Computed) or inner == rpc.UNKNOWN:  # the SDK reads unknowns as their text
        return UNKNOWN
    if isinstance(inner, Mapping):
        return {key: to_plain(item) for key, item in inner.items()}
    if isinstance(inner, float):
        return int(inner) if inner.is_integer() else inner
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return [to_plain(item) for item in inner]
    return inner


def plain_map(values: Mapping[str, PropertyValue]) -> dict[str, Plain]:
    return {key: to_plain(value) for key, value in values.items()}


def from_plain(value: Plain, *, secret: bool = False) -> PropertyValue:
    if value is UNKNOWN:
        return PropertyValue(rpc.UNKNOWN, is_secret=secret)  # the SDK cannot marshal its own Computed
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return PropertyValue(value, is_secret=secret)
    if isinstance(value, int | float):
        return PropertyValue(float(value), is_secret=secret)  # an int is refused by the SDK
    if isinstance(value, Mapping):
        return PropertyValue({key: from_plain(item) for key, item in value.items()}, is_secret=secret)
    return PropertyValue([from_plain(item) for item in value], is_secret=secret)


def wire_map(values: Mapping[str, Plain], secrets: Iterable[str] = ()) -> dict[str, PropertyValue]:
    hidden = frozenset(secrets)
    return {key: from_plain(value, secret=key in hidden) for key, value in values.items()}


def sendable(values: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    """The engine's own values, fit to be sent back: unknown ones in the form that can be marshalled."""
    return {key: _sendable(value) for key, value in values.items()}


def _sendable(value: PropertyValue) -> PropertyValue:
    inner = value.value
    if isinstance(inner, Computed):
        return value.with_value(rpc.UNKNOWN)
    if isinstance(inner, Mapping):
        return value.with_value({key: _sendable(item) for key, item in inner.items()})
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return value.with_value([_sendable(item) for item in inner])
    return value
