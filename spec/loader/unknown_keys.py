"""Unknown properties: what was meant, or where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin

from orch.spec.grammar.values import shown
from orch.spec.models import KINDS, MODELS
from orch.spec.models.fields.base import Section
from orch.spec.suggest import HABITS, closest

if TYPE_CHECKING:
    from orch.spec.diagnostics import Diagnostic
    from orch.spec.loader.document import Draft


def section_at(model: type[Section], path: Sequence[str | int]) -> type[Section] | None:
    """The block of properties that a path leads to, or None where the path leaves the models."""
    section: type[Section] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        section = _blocks(section).get(part) if section else None
    return section


@cache
def _blocks(model: type[Section]) -> dict[str, type[Section]]:
    """Properties of a block that are blocks themselves."""
    found: dict[str, type[Section]] = {}
    for written, name in model.properties().items():
        block = _section_in(model.model_fields[name].annotation)
        if block is not None:
            found[written] = block
    return found


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((block for part in get_args(annotation) if (block := _section_in(part))), None)


@cache
def _own_blocks(model: type[Section]) -> dict[str, type[Section]]:
    """Those of them that stand once, not in a list."""
    return {
        written: block
        for written, block in _blocks(model).items()
        if not _is_list(model.model_fields[model.properties()[written]].annotation)
    }


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list, dict) or any(
        get_origin(part) in (tuple, list, dict) for part in get_args(annotation)
    )


def unknown_property(
    draft: Draft,
    model: type[Section],
    path: tuple[str | int, ...],
    *,
    base: tuple[str | int, ...] = (),
    guess: bool = True,
) -> tuple[Diagnostic, set[str]]:
    """The diagnostic for a key that its block does not have, and the properties of the block that were
    meant. `path` starts at `model`, which stands at `base` in the document.
    """
    key = str(path[-1])
    section = section_at(model, path[:-1]) or model
    summary = f"unknown property {shown(key)} in {section.noun}"
    whole = (*base, *path)
    if not guess:
        return draft.diagnostic("ORCH110", whole, summary, key=True), set()
    at_top = len(whole) == 1
    belongs = _belongs(key, MODELS[draft.kind], section, draft.kind, at_top)
    if belongs:
        summary = f"{shown(key)} is not a property of {section.noun}"
        return draft.diagnostic("ORCH110", whole, summary, key=True, hint=belongs), set()
    habit = HABITS.get(key.lower().replace("-", "_"))
    meant = (
        next((part for part in (habit, habit.split(".")[-1]) if part in section.properties()), None)
        if habit
        else None
    )
    if habit and not meant and at_top and habit.split(".")[0] in section.properties():
        block, _, name = habit.partition(".")
        hint = f"write it as `{name}` under `{block}`"
        return draft.diagnostic("ORCH110", whole, summary, key=True, hint=hint), set()
    meant = meant or closest(key, section.written())
    hint = f"did you mean '{meant}'?" if meant else f"{section.noun} has {_some(section)}"
    diagnostic = draft.diagnostic("ORCH110", whole, summary, key=True, hint=hint, replacement=meant)
    return diagnostic, {section.spellings.get(meant, meant)} if meant else set()


def _belongs(key: str, model: type[Section], section: type[Section], kind: str, at_top: bool) -> str | None:
    """Where a property is at home, when its name is exactly one of another block or document."""
    if key in HABITS and HABITS[key] in section.properties():
        return None
    for block, inner in _own_blocks(section).items():
        if key in inner.properties() and not (at_top and key in _COMMON):
            return f"it belongs under `{block}`"
    if not at_top and key in model.written() and key not in _COMMON:
        return f"it belongs at the top of {model.noun}"
    if at_top and kind in KINDS:
        for other, other_model in KINDS.items():
            if other != kind and key in other_model.written():
                return f"it belongs to {other_model.noun}"
    return None


# Names that mean another thing in each block.
_COMMON = frozenset(
    {
        "min",
        "max",
        "target",
        "args",
        "extra",
        "name",
        "type",
        "path",
        "size",
        "count",
        "duration",
        "run",
        "user",
        "fs",
    }
)


def _some(section: type[Section]) -> str:
    names = [name for name in section.properties() if name != "type"]
    shown_names = ", ".join(f"`{name}`" for name in names[:12])
    return shown_names + (", …" if len(names) > 12 else "")
