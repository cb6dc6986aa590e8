"""Plain values to a model, and validation errors to diagnostics at places in the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orch.spec.diagnostics import Diagnostic, Related, property_path
from orch.spec.document.bounded import DiagnosticList
from orch.spec.document.draft import Draft, Path_
from orch.spec.document.redaction import unquoted
from orch.spec.grammar.values import Problem, Problems, shown
from orch.spec.models import KINDS, MODELS
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Misread
from orch.spec.suggest import HABITS, SAYINGS, closest


def validate(
    draft: Draft,
    values: dict[str, object],
    unclear: set[Path_],
    as_written: Callable[[], dict[str, object]],
) -> None:
    """Makes the model of `values`. `as_written` gives them with the
    references to the environment in place."""
    model = MODELS[draft.kind]
    for key, name in model.spellings.items():
        if values.get(key) is not None and values.get(name) is not None:
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH157",
                    (key,),
                    f"`{key}` and `{name}` are the same property",
                    key=True,
                    hint="keep one of them",
                    related=(Related(draft.span((name,), key=True), "the other one"),),
                )
            )
            del values[key]
    try:
        draft.partial = model.model_validate(values, by_alias=True, by_name=False)
        draft.broken |= {str(path[0]) for path in unclear}
    except ValidationError as error:
        diagnostics, broken = _explain(draft, model, error.errors(include_url=False), unclear)
        if draft.env_values:
            draft.diagnostics += _without_env_values(draft, model, diagnostics, as_written)
            draft.diagnostics.count_rest(diagnostics)
        else:
            draft.diagnostics += diagnostics
        draft.broken |= broken | {str(path[0]) for path in unclear}
        sound_values = {
            key: value for key, value in values.items() if model.spellings.get(key, key) not in draft.broken
        }
        try:
            draft.partial = model.model_validate(sound_values, by_alias=True, by_name=False)
        except ValidationError:
            draft.partial = None
        return
    if not draft.diagnostics.any_error:
        draft.model = draft.partial


def _without_env_values(
    draft: Draft,
    model: type[Section],
    diagnostics: list[Diagnostic],
    as_written: Callable[[], dict[str, object]],
) -> list[Diagnostic]:
    """The diagnostics without values of the environment: each is replaced by the diagnostic for the reference
    itself, from validating the text as written, or by one that quotes nothing.
    """
    variables_at = {property_path(path): variables for path, variables in draft.env_values.items()}
    inside = {
        id(each): variables for each in diagnostics if (variables := _variables_of(each.path, variables_at))
    }
    if not inside:
        return diagnostics
    try:
        model.model_validate(as_written(), by_alias=True, by_name=False)
        again = DiagnosticList()
    except ValidationError as error:
        again, _ = _explain(draft, model, error.errors(include_url=False), set())
    by_place = {(each.path, each.code): each for each in again}
    return [
        by_place.get((each.path, each.code)) or unquoted(each, inside[id(each)])
        if id(each) in inside
        else each
        for each in diagnostics
    ]


def _variables_of(path: str, variables_at: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """The variables in the text at a path, or in the one it is a part of."""
    return next(
        (
            variables
            for place, variables in variables_at.items()
            if path == place or path.startswith((f"{place}.", f"{place}["))
        ),
        None,
    )


_Found = ValidationError | Problem | Problems
_GUESSES = 50  # unknown properties of a document that get a suggestion: finding one takes a millisecond


def _explain(
    draft: Draft, model: type[Section], errors: list[ErrorDetails], unclear: set[Path_]
) -> tuple[DiagnosticList, set[str]]:
    """Diagnostics for what validation found, and the top-level properties that are not to be relied on."""
    account = _Account(draft, model, unclear)
    account.add(model, errors, ())
    return account.told, account.bad


class _Account:
    """Validation errors of a document, and of the blocks in it that are validated on their own."""

    def __init__(self, draft: Draft, model: type[Section], unclear: set[Path_]) -> None:
        self.draft = draft
        self.model = model
        self.unclear = unclear
        self.told = DiagnosticList()
        self.bad: set[str] = set()
        self.unknown = 0

    def add(self, model: type[Section], errors: list[ErrorDetails], base: Path_) -> None:
        """`errors` of `model`, which stands at `base`."""
        guessed: set[Path_] = set()
        for error in errors:
            if error["type"] == "extra_forbidden":
                guessed |= self.unknown_property(model, error["loc"], base)
        for error in errors:
            at = error["loc"]
            if error["type"] in ("extra_forbidden", "default_factory_not_called"):
                continue
            self.bad.add(_top(self.model, (*base, *at)))
            if error["type"] == "missing":
                if at not in guessed:
                    self.told.append(_missing(self.draft, model, at, base))
                continue
            cause = error.get("ctx", {}).get("error")
            if isinstance(cause, Misread):
                for place, inner, part_error in cause.parts:
                    self.part(inner, part_error, (*base, *at, *place))
            elif isinstance(cause, (Problem, Problems)):
                self.part(model, cause, (*base, *at))
            else:
                whole = (*base, *at)
                summary = f"this value does not fit `{property_path(whole)}`"
                self.told.append(self.draft.diagnostic("ORCH112", whole, summary))

    def part(self, model: type[Section], error: _Found, at: Path_) -> None:
        if isinstance(error, ValidationError):
            self.add(model, error.errors(include_url=False), at)
            return
        for problem in error.problems if isinstance(error, Problems) else (error,):
            path = (*at, *problem.at)
            if not any(path[: len(known)] == known for known in self.unclear):
                problem.on_key |= problem.code == "ORCH110"
                self.told.append(self.draft.problem(problem, path))

    def unknown_property(self, model: type[Section], at: Path_, base: Path_) -> set[Path_]:
        """Tells of an unknown property; the places of those it probably meant."""
        self.unknown += 1
        diagnostic, meant = unknown_property(self.draft, model, at, base=base, guess=self.unknown <= _GUESSES)
        self.told.append(diagnostic)
        whole = (*base, *at)
        self.bad |= {_top(self.model, whole), *(meant if len(whole) == 1 else ())}
        return {(*at[:-1], name) for name in meant}


def _top(model: type[Section], at: Path_) -> str:
    """The top-level property that a path lies in."""
    name = str(at[0]) if at else ""
    return model.spellings.get(name, name)


def _missing(draft: Draft, model: type[Section], at: Path_, base: Path_) -> Diagnostic:
    owner = section_at(model, at[:-1])
    noun = owner.noun if owner else "this"
    return draft.diagnostic(
        "ORCH113", (*base, *at[:-1]), f"{noun} needs `{at[-1]}`", hint=f"add `{at[-1]}: …`"
    )


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
    blocks: dict[str, type[Section]] = {}
    for written, name in model.properties().items():
        block = _section_in(model.model_fields[name].annotation)
        if block is not None:
            blocks[written] = block
    return blocks


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((block for part in get_args(annotation) if (block := _section_in(part))), None)


@cache
def _own_blocks(model: type[Section]) -> dict[str, type[Section]]:
    """Return the blocks that stand once, not in a list, by their names in the file."""
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
    word = key.lower().replace("-", "_")
    needed, saying = SAYINGS.get(word, (None, None))
    if needed in section.properties():
        return draft.diagnostic("ORCH110", whole, summary, key=True, hint=saying), set()
    habit = HABITS.get(word)
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
    problem = Problem("ORCH110", summary, hint=hint, replacement=meant, on_key=True)
    diagnostic = draft.problem(problem, whole)
    return diagnostic, {section.spellings.get(meant, meant)} if meant else set()


def _belongs(key: str, model: type[Section], section: type[Section], kind: str, at_top: bool) -> str | None:
    """A hint where a property belongs, when its name is one of another block or document."""
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
