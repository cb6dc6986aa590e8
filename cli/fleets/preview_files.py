"""Writes what `orch preview` found: reviews, JSON, and the saved plan that `orch up --plan` applies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from orch.cli.errors import UsageError, json_text, tell
from orch.cli.fleets.preview_stack import SCHEMA
from orch.cli.output.files import print_or_write

if TYPE_CHECKING:
    from orch.cli.fleets.preview_all import Previews
    from orch.review.model import Review
    from orch.spec.errors import ExitCode
    from orch.stacks.plans.saved_plan import Commit, SavedPlan, Terms
    from orch.stacks.project.project import Project

Form = Literal["markdown", "html", "json", "object", "plan"]


@dataclass(frozen=True)
class Output:
    """A form of the plans, and the file that gets it; None is stdout. `object` is JSON that is one object,
    also of a single file."""

    form: Form
    file: str | None = None


FORMS: Mapping[str, Form] = {"--json": "json", "--markdown": "markdown", "--html": "html"}
_ENDINGS: Mapping[str, Form] = {".md": "markdown", ".html": "html", ".htm": "html", ".json": "plan"}


def outputs_of(forms: Sequence[Form], files: Sequence[str]) -> list[Output]:
    """Return the outputs of a preview. With a form, the one file gets it; without, the ending of each file
    selects its form. Raises BadParameter."""
    if forms:
        if len(files) > 1:
            raise typer.BadParameter(f"with --{forms[0]}, one file is written", param_hint="--out")
        return [Output(forms[0], files[0] if files else None)]
    unknown = [each for each in files if Path(each).suffix.lower() not in _ENDINGS]
    if unknown:
        raise typer.BadParameter(
            f"say what to write to {unknown[0]}: --markdown, --html or --json; or name it .md, .html, or "
            ".json for a saved plan",
            param_hint="--out",
        )
    return [Output(_ENDINGS[Path(each).suffix.lower()], each) for each in files]


def review_in(folder: str) -> tuple[Output, ...]:
    """The whole review in a folder, which is made."""
    with suppress(OSError):  # which the first file tells
        os.makedirs(folder, exist_ok=True)
    names: tuple[tuple[Form, str], ...] = (
        ("markdown", "comment.md"),
        ("html", "review.html"),
        ("object", "review.json"),
    )
    return tuple(Output(form, os.path.join(folder, name)) for form, name in names)


def terms_of(project: Project, expires_s: int | None, titles: Sequence[str]) -> Terms:
    """The terms of a plan of these stacks that is made now. `expires_s`: for how many seconds it is valid,
    None: as long as the project says. Raises UsageError."""
    from orch import __version__
    from orch.stacks.engine.install import require
    from orch.stacks.plans.saved_plan import Terms

    made = datetime.now(timezone.utc).replace(microsecond=0)
    seconds = project.saved_plan_s if expires_s is None else expires_s
    try:
        expires = made + timedelta(seconds=seconds)
    except OverflowError as error:
        raise UsageError("a saved plan cannot be valid for that long", hint="write `3d`") from error
    return Terms(
        project=project.name,
        rehearsal=project.rehearsal,
        made=made,
        expires=expires,
        orch=__version__,
        engine=require().version,
        stacks=tuple(titles),
    )


def validity(expires: str | None, file: str, *, saves: bool) -> int | None:
    """Return for how many seconds a saved plan is valid; None: as long as the project says. Raises
    BadParameter."""
    from orch.spec.grammar.values import Problem, parse_duration

    if not saves:
        if expires is not None:
            raise typer.BadParameter("it goes with a saved plan, `--out plan.json`", param_hint="--expires")
        return None
    if file == "-":
        raise typer.BadParameter("a saved plan is of a file: name it", param_hint="--out")
    if expires is None:
        return None
    try:
        seconds = parse_duration(expires)
    except Problem as problem:
        raise typer.BadParameter(str(problem), param_hint="--expires") from problem
    if not seconds:
        raise typer.BadParameter("a plan expires: write `24h` or `3d`", param_hint="--expires")
    return seconds


def commit_behind(previews: Previews) -> Commit | None:
    """The commit that the files of a preview are of."""
    from orch.stacks.saved_plans.fingerprint import commit_of

    done, root = previews.done, previews.project.root
    files = {file for each in done if each.saved is not None for file in each.saved.files if " (" not in file}
    files |= {os.path.relpath(each.review.where.partition(":")[0], root) for each in done}
    return commit_of(root, sorted(file for file in files if not file.startswith(("..", "/"))))


def saved_plan(previews: Previews, commit: Commit | None) -> SavedPlan | None:
    """The saved plan of what was previewed; None where none is wanted."""
    from orch.stacks.plans.saved_plan import SavedPlan, Unplanned

    if previews.terms is None:
        return None
    return SavedPlan(
        path=os.path.relpath(previews.target),
        terms=previews.terms,
        git=commit,
        stacks=tuple(each.saved for each in previews.done if each.saved is not None),
        unplanned=tuple(
            Unplanned(
                title=each.review.title,
                where=each.review.where,
                summary=each.review.failure.summary if each.review.failure else "it has no plan",
            )
            for each in previews.done
            if each.saved is None
        ),
    )


def write(previews: Previews, outputs: Sequence[Output], code: ExitCode, *, basis: bool) -> None:
    from orch.review.html import html
    from orch.review.markdown import markdown

    commit = commit_behind(previews) if basis else None
    saved = saved_plan(previews, commit)
    file = next((each.file for each in outputs if each.form == "plan"), None)
    review = _review(previews, commit, saved, file)
    for each in outputs:
        if each.form in ("json", "object"):
            text = _json(previews, code, whole=each.form == "object")
        elif each.form == "plan":
            text = saved.text() if saved is not None else ""
        else:
            text = (markdown if each.form == "markdown" else html)(review)
        print_or_write(text, each.file)
    if saved is not None and saved.unplanned:
        names = ", ".join(each.title for each in saved.unplanned)
        tell(f"the saved plan cannot be applied: there is no plan of {names}")


def _review(previews: Previews, commit: Commit | None, saved: SavedPlan | None, file: str | None) -> Review:
    from orch.review.model import Basis, Review, worst_first
    from orch.stacks.plans.saved_plan import stamp

    target, root = previews.target, previews.project.root
    path = os.path.relpath(target, root) if target != "-" else "-"
    stacks = worst_first([each.review for each in previews.done])
    basis = Basis(
        commit=commit.commit if commit else "",
        base=(commit.base or "") if commit else "",
        dirty=commit.dirty if commit else False,
        plan=saved.id if saved else "",
        valid_until=stamp(saved.terms.expires) if saved else "",
    )
    command = f"orch up --plan {file}" if saved and file else f"orch up {path}"
    return Review(previews.project.name, path, stacks, command, basis)


def _json(previews: Previews, code: ExitCode, *, whole: bool = False) -> str:
    """One object for a folder, or with `whole`; for a file one for each of its stacks, as without `--out`."""
    target, done = previews.target, previews.done
    waves = {each.title: each.wave for each in previews.stacks}
    if not whole and not os.path.isdir(target):
        return "".join(f"{json_text(each.data)}\n" for each in done)
    data = {
        "schema": SCHEMA,
        "path": target,
        "stacks": [
            {
                "where": each.review.where,
                "wave": waves.get(each.review.title),
                "verdict": each.review.verdict,
                "exit_code": int(each.code),
                **each.data,
            }
            for each in done
        ],
        "undescribed": [each.as_json() for each in previews.undescribed],
        "exit_code": int(code),
    }
    return f"{json_text(data)}\n"
