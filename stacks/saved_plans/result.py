"""What became of an `orch up --plan`, as a file for who tells it in the pull request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from orch.spec.confidential import hidden
from orch.spec.errors import ExitCode, OrchError
from orch.stacks.errors import ProjectError
from orch.stacks.plans.guard import VOID

SCHEMA = 1


class Failure(BaseModel):
    """Reason that an apply was refused or failed. `detail`: the rows that differ, or what the engine said."""

    model_config = ConfigDict(frozen=True)

    summary: str
    code: str | None = None
    where: str | None = None
    detail: tuple[str, ...] = ()
    hint: str | None = None


class ApplyResult(BaseModel):
    """Result of an apply. `plan`: its id, None where its file could not be read; `applied` and
    `not_begun`: its stacks, a failed one is in neither."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    schema_: int = Field(default=SCHEMA, alias="schema")
    plan: str | None = None
    exit_code: int
    applied: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()
    error: Failure | None = None

    @property
    def is_refused(self) -> bool:
        """Return True if nothing was started."""
        if self.error is None or self.applied or any(VOID in each for each in self.error.detail):
            return False
        return self.exit_code in (ExitCode.USAGE, ExitCode.CONFIG, ExitCode.POLICY, ExitCode.CONFLICT)


@dataclass
class Progress:
    """Progress of an apply."""

    plan: str | None = None
    waiting: list[str] = field(default_factory=list[str])
    applied: list[str] = field(default_factory=list[str])
    is_unfit: bool = False

    def result(self, error: OrchError | None) -> ApplyResult:
        code = error.exit_code if error is not None else ExitCode.HOSTS if self.is_unfit else ExitCode.OK
        return ApplyResult(
            plan=self.plan,
            exit_code=code,
            applied=tuple(self.applied),
            not_begun=tuple(self.waiting),
            error=None if error is None else _failure(error),
        )


@contextmanager
def recorded(file: Path | None) -> Iterator[Progress]:
    """Write what becomes of an apply into a file: at first that it was cut short, in its place how it ended.

    Raises ProjectError for a file that cannot be written, or is another one, before anything is applied.
    """
    progress = Progress()
    if file is None:
        yield progress
        return
    cut_short = Failure(
        summary="the apply was cut short",
        hint="`orch preview` shows what is left to do; the log of the run may tell what ended it",
    )
    _refuse_other(file)
    _write(file, ApplyResult(exit_code=ExitCode.BUG, error=cut_short))
    try:
        yield progress
    except OrchError as error:
        _write(file, progress.result(error))
        raise
    _write(file, progress.result(None))


def _failure(error: OrchError) -> Failure:
    return Failure(
        summary=hidden(error.summary),
        code=error.code,
        where=error.where,
        detail=tuple(hidden(error.detail or "").splitlines()),
        hint=error.hint,
    )


def _refuse_other(file: Path) -> None:
    """Raises ProjectError for a file that is there and has something else, such as the plan."""
    try:
        if not file.is_file() or not (content := file.read_bytes()):
            return
        ApplyResult.model_validate_json(content)
    except (OSError, ValueError) as error:
        raise ProjectError(
            "this file is no result of an apply, and is not overwritten",
            where=str(file),
            hint="give --result another file; nothing was changed",
        ) from error


def _write(file: Path, result: ApplyResult) -> None:
    try:
        file.write_text(json.dumps(result.model_dump(mode="json", by_alias=True), indent=2) + "\n", "utf-8")
    except OSError as error:
        raise ProjectError(
            "the result cannot be written",
            where=str(file),
            detail=error.strerror or str(error),
            hint="give --result a file in a folder that can be written",
        ) from error
