"""Plain values to a model, and what validation found in words and places of the file."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .diagnostics import Diagnostic, Related, Severity, property_path
from .draft import MODELS, Draft, Path_
from .models.base import Section
from .placing import section_at, unknown_property
from .values import Problem, Problems


def validate(draft: Draft, values: dict[str, object], unclear: set[Path_]) -> None:
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
        draft.diagnostics += told
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


_GUESSES = 50  # unknown properties of a document that get a suggestion: finding one takes a millisecond


def _explain(
    draft: Draft, model: type[Section], errors: list[ErrorDetails], unclear: set[Path_]
) -> tuple[list[Diagnostic], set[str]]:
    """Diagnostics for what validation found, and the top-level properties that are not to be relied on."""
    told: list[Diagnostic] = []
    bad: set[str] = set()
    guessed: set[Path_] = set()
    unknown = 0
    for error in errors:
        if error["type"] == "extra_forbidden":
            at = error["loc"]
            unknown += 1
            diagnostic, meant = unknown_property(draft, model, at, guess=unknown <= _GUESSES)
            told.append(diagnostic)
            guessed |= {(*at[:-1], name) for name in meant}
            bad |= {str(at[0]), *(meant if len(at) == 1 else ())}
    for error in errors:
        at = error["loc"]
        if error["type"] == "extra_forbidden":
            continue
        bad.add(_top(model, at))
        if error["type"] == "missing":
            if at not in guessed:
                told.append(_missing(draft, model, at))
            continue
        cause = error.get("ctx", {}).get("error")
        problems = (
            cause.problems if isinstance(cause, Problems) else (cause,) if isinstance(cause, Problem) else ()
        )
        for problem in problems:
            path = (*at, *problem.at)
            if not any(path[: len(known)] == known for known in unclear):
                told.append(
                    draft.diagnostic(
                        problem.code,
                        path,
                        problem.summary,
                        key=problem.on_key or problem.code == "ORCH110",
                        detail=problem.detail,
                        hint=problem.hint,
                        replacement=problem.replacement,
                    )
                )
        if not problems:
            told.append(draft.diagnostic("ORCH112", at, f"this value does not fit `{property_path(at)}`"))
    return told, bad


def _top(model: type[Section], at: Path_) -> str:
    """The top-level property that a path lies in."""
    name = str(at[0]) if at else ""
    return model.spellings.get(name, name)


def _missing(draft: Draft, model: type[Section], at: Path_) -> Diagnostic:
    owner = section_at(model, at[:-1])
    noun = owner.noun if owner else "this"
    return draft.diagnostic("ORCH113", at[:-1], f"{noun} needs `{at[-1]}`", hint=f"add `{at[-1]}: …`")
