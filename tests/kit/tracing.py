"""Which properties of a model something reads: what acts on a property has looked at it.

The rules of the language read every property while a file is loaded, which is no acting on one: what they
read is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from orch.spec.loader import cross_file, load
from orch.spec.loader.load import DraftReader
from orch.spec.models import Range
from orch.spec.models.fields.base import Section
from orch.stacks.secrets import values

LOADING = (
    (DraftReader, "read"),
    (load, "check_document"),
    (load, "outside_uses"),
    (load, "not_acted_on"),
    (load, "_settled"),
    (cross_file, "check_together"),
    (values, "_texts"),
)
"""What a file is read and checked by, and what looks for references to secrets in all texts of a login."""


class Reads:
    """Reads of ranges one by one, of other blocks by their class: those are copied on the way."""

    def __init__(self) -> None:
        self.objects: set[tuple[int, str]] = set()
        self.classes: set[tuple[str, str]] = set()

    def of(self, owner: object, name: str) -> bool:
        if type(owner) is Range:
            return (id(owner), name) in self.objects
        return (type(owner).__name__, name) in self.classes


class _Loading(threading.local):
    """How many calls of LOADING this thread is in."""

    depth = 0


@contextmanager
def traced() -> Iterator[Reads]:
    """Everything that is read of any model within, but for what reads and checks files."""
    reads, loading = Reads(), _Loading()
    plain = object.__getattribute__
    fields = dict[type[Section], frozenset[str]]()

    def told(self: Section, name: str) -> Any:
        kind = type(self)
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = frozenset(kind.model_fields)
        if name in names and not loading.depth:
            reads.classes.add((kind.__name__, name))
            if kind is Range:
                reads.objects.add((id(self), name))
        return plain(self, name)

    def untold(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def within(*given: Any, **more: Any) -> Any:
            loading.depth += 1
            try:
                result = call(*given, **more)
                return list(result) if isinstance(result, Iterator) else result  # before it reads elsewhere
            finally:
                loading.depth -= 1

        return within

    with ExitStack() as patches:
        for owner, name in LOADING:
            patches.enter_context(patch.object(owner, name, untold(getattr(owner, name))))
        Section.__getattribute__ = told  # type: ignore[method-assign]
        patches.callback(lambda: delattr(Section, "__getattribute__"))
        yield reads
