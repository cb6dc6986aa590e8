"""A forge: where pull requests, comments, checks and issues are, as what posts there sees it.

GitHub and GitLab are behind one protocol. Numbers of pull requests and issues are those that people see.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from orch.spec.errors import ExitCode, OrchError
from orch.spec.install import install_hint

Level = Literal["failure", "warning", "notice"]
Conclusion = Literal["success", "neutral", "failure", "action_required"]


@dataclass(frozen=True)
class Comment:
    """A comment of a pull request. `author`: the login of who wrote it."""

    id: int
    author: str
    body: str


@dataclass(frozen=True)
class Pull:
    """A pull request. `head`: the commit that it would merge, or has merged; `merge`: the commit of its merge
    into its base, also of one that was only tried; "" where there is none."""

    number: int
    head: str
    base: str
    is_fork: bool
    merge: str = ""
    is_open: bool = True


@dataclass(frozen=True)
class Issue:
    number: int
    author: str
    title: str
    body: str
    is_open: bool


@dataclass(frozen=True)
class Annotation:
    """A message at lines of a file of the repository."""

    path: str
    line: int
    end_line: int
    level: Level
    title: str
    message: str


@dataclass(frozen=True)
class Check:
    """The result of a check of a commit, with any number of annotations."""

    name: str
    head: str
    conclusion: Conclusion
    title: str
    summary: str
    annotations: Sequence[Annotation] = ()
    details_url: str | None = None


class Forge(Protocol):
    """A repository on a forge. Each method raises ForgeError."""

    noun: str
    """What it calls a pull request."""

    def author(self) -> str:
        """The login under which this process writes. Where the API does not tell it is a guess, until the
        forge answers to something that was written."""
        ...

    def comments(self, number: int) -> Iterator[Comment]:
        """Return all comments of a pull request, over all pages, the oldest first."""
        ...

    def add_comment(self, number: int, body: str) -> None: ...

    def edit_comment(self, number: int, comment: int, body: str) -> None: ...

    def delete_comment(self, number: int, comment: int) -> None: ...

    def pull(self, number: int) -> Pull: ...

    def pulls(self, base: str | None = None) -> Iterator[Pull]:
        """The open pull requests, into this branch where one is given."""
        ...

    def pulls_of(self, commit: str) -> Iterator[Pull]:
        """The pull requests that brought a commit, merged ones among them."""
        ...

    def approvals(self, number: int) -> Iterator[Comment]:
        """Return approvals of a pull request as it is now, by people who may write to the repository, with
        their text."""
        ...

    def post_check(self, check: Check) -> None: ...

    def issues(self, label: str) -> Iterator[Issue]:
        """Open and closed issues with this label, over all pages."""
        ...

    def add_issue(self, title: str, body: str, label: str) -> int:
        """Open an issue; its number."""
        ...

    def edit_issue(self, issue: Issue, title: str, body: str, *, is_open: bool) -> None: ...


class ForgeError(OrchError):
    """The forge refused a request, or did not answer. `status`: of HTTP, where there is one."""

    exit_code = ExitCode.PROVISION
    status: int | None = None


class ForgeBusy(ForgeError):
    """The forge is overloaded or asks to wait: the same may work later. `wait`: seconds it asks for."""

    def __init__(self, summary: str, *, wait: float | None = None, **more: str | None) -> None:
        super().__init__(summary, **more)
        self.wait = wait


class NotAllowed(OrchError):
    """Somebody may not have this done, or not with this pull request."""

    exit_code = ExitCode.POLICY


class NoLibrary(OrchError):
    """The library of a forge is not installed."""

    exit_code = ExitCode.USAGE


def require_library(module: str, forge: str) -> Any:
    """A module of a forge's library. Raises NoLibrary."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NoLibrary(
            f"the library for {forge} is not installed",
            detail=str(error),
            hint=install_hint("ci"),
        ) from error


def refusal(
    status: int | None, message: str, where: str, token: str, wait: float | None = None
) -> ForgeError:
    """The error for an HTTP status. `where`: the repository; `token`: the name of the variable with it."""
    error = _refusal(status, message, where, token, wait)
    error.status = status
    return error


def _refusal(
    status: int | None, message: str, where: str, token: str, wait: float | None = None
) -> ForgeError:
    said = message or "it gave no reason"
    if status == 401:
        return ForgeError(
            "the token is not valid",
            where=where,
            detail=said,
            hint=f"{token} is wrong or has expired; give the job a new one",
        )
    if status == 429 or (status == 403 and ("rate limit" in message.lower() or wait is not None)):
        return ForgeBusy(
            "the forge asks to wait: too many requests",
            wait=wait,
            where=where,
            detail=said,
            hint="run the job again later",
        )
    if status == 403:
        return ForgeError(
            "the token may not do this",
            where=where,
            detail=said,
            hint="give it the right: docs/reference/ci.md lists what each command needs. Pull requests from "
            "forks get a token that only reads",
        )
    if status == 404:
        return ForgeError(
            "there is no such repository, pull request or issue, or the token may not see it",
            where=where,
            detail=said,
            hint=f"look at --repo and --pr, and whether {token} is for this repository",
        )
    if status in (400, 422):
        return ForgeError("the forge cannot take this", where=where, detail=said)
    if status is None or status >= 500:
        return ForgeBusy(
            "the forge does not answer" if status is None else f"the forge answers with status {status}",
            wait=wait,
            where=where,
            detail=said,
            hint="run the job again later; nothing is posted twice",
        )
    return ForgeError(f"the forge answers with status {status}", where=where, detail=said)
