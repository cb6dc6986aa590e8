"""Which properties of a model something reads: what acts on a property has looked at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orch.spec.models import Range
from orch.spec.models.fields.base import Section


class Reads:
    """Reads of ranges one by one, of other blocks by their class: those are copied on the way."""

    def __init__(self) -> None:
        self.objects: set[tuple[int, str]] = set()
        self.classes: set[tuple[str, str]] = set()

    def of(self, owner: object, name: str) -> bool:
        if type(owner) is Range:
            return (id(owner), name) in self.objects
        return (type(owner).__name__, name) in self.classes


@contextmanager
def traced() -> Iterator[Reads]:
    """Everything that is read of any model within."""
    reads = Reads()
    plain = object.__getattribute__
    fields = dict[type[Section], frozenset[str]]()

    def told(self: Section, name: str) -> Any:
        kind = type(self)
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = frozenset(kind.model_fields)
        if name in names:
            reads.classes.add((kind.__name__, name))
            if kind is Range:
                reads.objects.add((id(self), name))
        return plain(self, name)

    Section.__getattribute__ = told  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        del Section.__getattribute__
