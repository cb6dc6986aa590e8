"""Plain values to a model, and what validation found in words and places of the file."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orch.spec.diagnostics import Diagnostic, Related, Severity, property_path
from orch.spec.grammar.values import Problem, Problems
from orch.spec.loader.document import Draft, Path_
from orch.spec.loader.redaction import unquoted
from orch.spec.loader.unknown_keys import section_at, unknown_property
from orch.spec.models import MODELS
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Misread


def validate(
    draft: Draft,
    values: dict[str, object],
    unclear: set[Path_],
    written: Callable[[], dict[str, object]],
) -> None:
    """Makes the model of `values`. `written` gives them with references to the environment as they stand."""
    model = MODELS[draft.kind]
    for key, chosen in model.spellings.items():
        if values.get(key) is not None and values.get(chosen) is not None:
            draft.diagnostics.append(
                draft.diagnostic(
                    "ORCH157",
                    (key,),
                    f"`{key}` and `{chosen}` are the same property",
                    key=True,
                    hint="keep one of them",
                    related=(Related(draft.span((chosen,), key=True), "the other one"),),
                )
            )
            del values[key]
    try:
        draft.partial = model.model_validate(values, by_alias=True, by_name=False)
        draft.broken |= {str(path[0]) for path in unclear}
    except ValidationError as error:
        told, bad = _explain(draft, model, error.errors(include_url=False), unclear)
        draft.diagnostics += _without_lent(draft, model, told, written) if draft.borrowed else told
        draft.broken |= bad | {str(path[0]) for path in unclear}
        rest = {
            key: value for key, value in values.items() if model.spellings.get(key, key) not in draft.broken
        }
        try:
            draft.partial = model.model_validate(rest, by_alias=True, by_name=False)
        except ValidationError:
            draft.partial = None
        return
    if not any(diagnostic.severity is Severity.ERROR for diagnostic in draft.diagnostics):
        draft.model = draft.partial


def _without_lent(
    draft: Draft, model: type[Section], told: list[Diagnostic], written: Callable[[], dict[str, object]]
) -> list[Diagnostic]:
    """The same, told of the reference where a value came from the environment: the same mistake is looked for
    in the text as it stands in the file.
    """
    places = {property_path(path): lent for path, lent in draft.borrowed.items()}
    inside = {id(each): lent for each in told if (lent := _lent_to(each.path, places))}
    if not inside:
        return told
    try:
        model.model_validate(written(), by_alias=True, by_name=False)
        again: list[Diagnostic] = []
    except ValidationError as error:
        again, _ = _explain(draft, model, error.errors(include_url=False), set())
    known = {(each.path, each.code): each for each in again}
    return [
        known.get((each.path, each.code)) or unquoted(each, inside[id(each)]) if id(each) in inside else each
        for each in told
    ]


def _lent_to(path: str, places: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """The variables in the text at a path, or in the one it is a part of."""
    return next(
        (
            lent
            for place, lent in places.items()
            if path == place or path.startswith((f"{place}.", f"{place}["))
        ),
        None,
    )


_Found = ValidationError | Problem | Problems
_GUESSES = 50  # unknown properties of a document that get a suggestion: finding one takes a millisecond


def _explain(
    draft: Draft, model: type[Section], errors: list[ErrorDetails], unclear: set[Path_]
) -> tuple[list[Diagnostic], set[str]]:
    """Diagnostics for what validation found, and the top-level properties that are not to be relied on."""
    account = _Account(draft, model, unclear)
    account.add(model, errors, ())
    return account.told, account.bad


class _Account:
    """What validation found in a document and in the blocks that were read on their own."""

    def __init__(self, draft: Draft, model: type[Section], unclear: set[Path_]) -> None:
        self.draft = draft
        self.model = model
        self.unclear = unclear
        self.told: list[Diagnostic] = []
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
                for place, inner, found in cause.parts:
                    self.part(inner, found, (*base, *at, *place))
            elif isinstance(cause, (Problem, Problems)):
                self.part(model, cause, (*base, *at))
            else:
                whole = (*base, *at)
                summary = f"this value does not fit `{property_path(whole)}`"
                self.told.append(self.draft.diagnostic("ORCH112", whole, summary))

    def part(self, model: type[Section], found: _Found, at: Path_) -> None:
        if isinstance(found, ValidationError):
            self.add(model, found.errors(include_url=False), at)
            return
        for problem in found.problems if isinstance(found, Problems) else (found,):
            path = (*at, *problem.at)
            if not any(path[: len(known)] == known for known in self.unclear):
                self.told.append(
                    self.draft.diagnostic(
                        problem.code,
                        path,
                        problem.summary,
                        key=problem.on_key or problem.code == "ORCH110",
                        detail=problem.detail,
                        hint=problem.hint,
                        replacement=problem.replacement,
                    )
                )

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
