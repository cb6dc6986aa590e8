"""GitHub, by PyGithub."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orch.ci.findings import cut
from orch.ci.forge import (
    Annotation,
    Check,
    Comment,
    ForgeError,
    Issue,
    NotAllowed,
    Pull,
    refusal,
    require_library,
)
from orch.ci.protection import Environment, of_github
from orch.spec.cursors import Cursors

if TYPE_CHECKING:
    from github import Github
    from github.Repository import Repository

TOKEN = "GITHUB_TOKEN"
ACTIONS = "github-actions[bot]"
"""Who writes with the token of a workflow. `GET /user` is not for tokens of apps, of which this is one."""

MOST_ANNOTATIONS = 50
"""In one request; those of later requests are appended. Source: REST API, "Update a check run"."""

MOST_SUMMARY = 65_000
"""Bytes of a check's summary: the API takes 65,535 characters. Source: REST API, "Create a check run"."""

_VERDICTS = ("APPROVED", "CHANGES_REQUESTED", "DISMISSED")
"""States of a review that take the place of an earlier one; a comment does not."""

PER_PAGE = 100
TIMEOUT_S = 30
TRIES = 5


@dataclass
class GitHub:
    """A repository on GitHub. `pause` is the first of the growing pauses between tries, in seconds.

    `in_actions`: the token may be a workflow's own, which the API gives no name.
    """

    repo: str
    token: str
    url: str = "https://api.github.com"
    known_author: str | None = None
    in_actions: bool = False
    pause: float = 1.0
    noun: str = "pull request"

    def __post_init__(self) -> None:
        github = require_library("github", "GitHub")
        logging.getLogger("github").setLevel(logging.CRITICAL)  # errors are told once, by us
        # POST is left out: what was made before its answer got lost would be made twice.
        retry = github.GithubRetry(
            total=TRIES,
            connect=2,
            backoff_factor=self.pause,
            secondary_rate_wait=60 * self.pause,
            max_rate_limit_wait=300,
            allowed_methods=("GET", "PATCH", "DELETE"),
        )
        self._error: type[Exception] = github.GithubException
        self._client: Github = github.Github(
            auth=github.Auth.Token(self.token),
            base_url=self.url.rstrip("/"),
            per_page=PER_PAGE,
            timeout=TIMEOUT_S,
            retry=retry,
            seconds_between_requests=0,
            seconds_between_writes=self.pause,
            lazy=True,
        )
        self._repository: Repository = self._client.get_repo(self.repo)
        self._author: str | None = self.known_author

    def author(self) -> str:
        if self._author is None:
            try:
                with self._asking():
                    self._author = self._client.get_user().login
            except ForgeError as error:
                if error.status != 403 or not self.in_actions:
                    raise
                self._author = ACTIONS
        return self._author

    def comments(self, number: int) -> Iterator[Comment]:
        with self._asking(number):
            for each in self._listed(self._repository.get_issue(number).get_comments()):
                yield Comment(each.id, _login(each), each.body or "")

    def add_comment(self, number: int, body: str) -> None:
        with self._asking(number):
            made = self._repository.get_issue(number).create_comment(body)
            self._author = made.user.login

    def edit_comment(self, number: int, comment: int, body: str) -> None:
        with self._asking(number):
            self._repository.get_issue(number).get_comment(comment).edit(body)

    def delete_comment(self, number: int, comment: int) -> None:
        with self._asking(number):
            self._repository.get_issue(number).get_comment(comment).delete()

    def pull(self, number: int) -> Pull:
        with self._asking(number):
            return _pull(self._repository.get_pull(number))

    def pulls(self, base: str | None = None) -> Iterator[Pull]:
        with self._asking():
            into = {} if base is None else {"base": base}
            for each in self._listed(self._repository.get_pulls(state="open", **into)):
                yield _pull(each)

    def pulls_of(self, commit: str) -> Iterator[Pull]:
        with self._asking():
            for each in self._listed(self._repository.get_commit(commit).get_pulls()):
                yield _pull(each)

    def approvals(self, number: int) -> Iterator[Comment]:
        """The last review of each person, where it approves the commit that would be merged."""
        with self._asking(number):
            pull = self._repository.get_pull(number)
            reviews = self._listed(pull.get_reviews())
            last = {_login(each): each for each in reviews if each.state in _VERDICTS}
            for login, each in last.items():
                if each.state != "APPROVED" or each.commit_id != pull.head.sha or login == _login(pull):
                    continue
                if self._repository.get_collaborator_permission(login) in ("admin", "write"):
                    yield Comment(each.id, login, each.body or "")

    def applicable(self, number: int, login: str) -> Pull:
        """A pull request that this login may have applied before it is merged.

        Raises NotAllowed unless the login may write to the repository, and the pull request is open, comes
        from no fork and can be merged; ForgeError.
        """
        where = f"{self.repo}#{number}"
        with self._asking(number):
            pull = self._repository.get_pull(number)
            found, can_merge = _pull(pull), pull.mergeable
            permission = self._repository.get_collaborator_permission(login)
        if permission not in ("admin", "write"):
            raise NotAllowed(
                f"{login} may not have it applied",
                where=where,
                detail=f"the permission of {login} is {permission!r}",
                hint="somebody who may write to the repository comments",
            )
        if found.is_fork or not found.is_open:
            why = "comes from a fork" if found.is_fork else "is not open"
            raise NotAllowed(f"a pull request that {why} is not applied", where=where)
        if not can_merge or not found.merge:
            raise NotAllowed(
                "the pull request cannot be merged, so it is not applied",
                where=where,
                detail="it has conflicts, or GitHub has not tried its merge yet",
                hint="bring its branch up to date, wait a moment, and comment again",
            )
        return found

    def environment(self, name: str, branch: str) -> Environment:
        """Return the protection of an environment. Raises ForgeError."""
        with self._asking():
            url = f"/repos/{self.repo}/environments/{quote(name, safe='')}"
            try:
                _, told = self._client.requester.requestJsonAndCheck("GET", url)
            except self._error as error:
                if getattr(error, "status", None) != 404:
                    raise
                return of_github(name, None, {}, branch)
            _, policies = self._client.requester.requestJsonAndCheck(
                "GET", f"{url}/deployment-branch-policies", parameters={"per_page": PER_PAGE}
            )
            return of_github(name, told, policies, branch)

    def post_check(self, check: Check) -> None:
        """Post a check, in as many requests as its annotations need: fifty in each, later ones are
        appended."""
        annotations = [_annotation(each) for each in check.annotations]
        pages = [
            annotations[at : at + MOST_ANNOTATIONS] for at in range(0, len(annotations), MOST_ANNOTATIONS)
        ] or [[]]
        output: dict[str, Any] = {"title": check.title, "summary": cut(check.summary, MOST_SUMMARY)}
        more: dict[str, Any] = {"details_url": check.details_url} if check.details_url else {}
        whole: dict[str, Any] = {"status": "completed", "conclusion": check.conclusion}
        begun: dict[str, Any] = {"status": "in_progress"}
        with self._asking():
            run = self._repository.create_check_run(
                check.name,
                check.head,
                output={**output, "annotations": pages[0]},
                **more,
                **(begun if len(pages) > 1 else whole),
            )
            for at, page in enumerate(pages[1:], 2):
                end = whole if at == len(pages) else {}
                run.edit(output={**output, "annotations": page}, **end)

    def issues(self, label: str) -> Iterator[Issue]:
        with self._asking():
            issues = self._repository.get_issues(state="all", labels=[label], sort="created")
            for each in self._listed(issues):
                # `pull_request` is absent from issues, and asking for it would be a request for each.
                if "/pull/" not in each.html_url:
                    yield Issue(each.number, _login(each), each.title, each.body or "", each.state == "open")

    def add_issue(self, title: str, body: str, label: str) -> int:
        with self._asking():
            made = self._repository.create_issue(title, body, labels=[label])
            self._author = made.user.login
            # Who may not set labels gets an issue without them, and no error; it would never be found again.
            if label not in (each.name for each in made.labels):
                made.edit(state="closed")
                raise ForgeError(
                    f"the issue {made.number} was opened without its label {label}, and closed again",
                    where=self.repo,
                    hint="give the token the right to write issues, or make the label by hand",
                )
            return made.number

    def edit_issue(self, issue: Issue, title: str, body: str, *, is_open: bool) -> None:
        with self._asking(issue.number):
            state = "open" if is_open else "closed"
            self._repository.get_issue(issue.number).edit(title=title, body=body, state=state)

    def _listed(self, found: Any) -> Iterator[Any]:
        """Yield the items of a list. Raises ForgeError for one that does not end."""
        cursors = Cursors(lambda text: ForgeError(text, where=f"{self.repo} at {self.url}"))
        while found._couldGrow():
            cursors.next(vars(found)["_PaginatedList__nextUrl"])
            yield from found._grow()

    @contextmanager
    def _asking(self, number: int | None = None) -> Iterator[None]:
        """Errors of the library as ours."""
        import requests
        from github.GithubException import BadAttributeException

        where = self.repo if number is None else f"{self.repo}#{number}"
        try:
            yield
        except self._error as error:
            status, headers = getattr(error, "status", None), getattr(error, "headers", None) or {}
            raise refusal(status, _message(error), where, TOKEN, _seconds(headers)) from error
        except requests.RequestException as error:
            raise refusal(None, _reason(error), f"{where} at {self.url}", TOKEN) from error
        except (BadAttributeException, TypeError, KeyError, json.JSONDecodeError) as error:
            raise ForgeError(
                "the answer is none of GitHub's",
                where=f"{where} at {self.url}",
                detail=f"{type(error).__name__}: {error}",
                hint="look at GITHUB_API_URL",
            ) from error


def _pull(pull: Any) -> Pull:
    head = pull.head.repo
    is_fork = head is None or head.full_name != pull.base.repo.full_name
    merge = pull.merge_commit_sha or ""
    return Pull(pull.number, pull.head.sha, pull.base.ref, is_fork, merge, pull.state == "open")


def _login(written: Any) -> str:
    """Return the author of a comment or an issue; empty if GitHub names nobody: `nullable-simple-user`."""
    return written.user.login if written.user is not None else ""


def _annotation(annotation: Annotation) -> dict[str, Any]:
    data = asdict(annotation)
    return {
        "path": data["path"],
        "start_line": data["line"],
        "end_line": data["end_line"],
        "annotation_level": data["level"],
        "title": data["title"][:255],
        "message": data["message"],
    }


def _message(error: Exception) -> str:
    """Return GitHub's error message, with the fields that it names."""
    data = getattr(error, "data", None)
    if not isinstance(data, dict):
        return str(data or getattr(error, "message", "") or "")
    parts = [str(data.get("message") or "")]
    for each in data.get("errors") or ():
        parts.append(each if isinstance(each, str) else " ".join(map(str, each.values())))
    return "; ".join(part for part in parts if part)


def _seconds(headers: Any) -> float | None:
    value = headers.get("retry-after") or headers.get("Retry-After")
    return float(value) if value and str(value).isdigit() else None


def _reason(error: Exception) -> str:
    """The innermost reason: what is around it tells of pools and tries."""
    while error.__cause__ is not None or error.__context__ is not None:
        inner = error.__cause__ or error.__context__
        if not isinstance(inner, Exception):
            break
        error = inner
    return f"{type(error).__name__}: {error}"
