"""GitLab, by python-gitlab."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from orch.ci.forge import Check, Comment, ForgeError, Issue, Pull, refusal, require_library
from orch.spec.cursors import Cursors

if TYPE_CHECKING:
    from gitlab import Gitlab

TOKEN = "GITLAB_TOKEN"
PER_PAGE = 100
TIMEOUT_S = 30

_DEVELOPER = 30
"""The least access level that may push. Source: GitLab's API, "Valid access levels"."""

_APPROVED = "approved this merge request"
"""The note of the system when somebody approves."""

STATES = {"success": "success", "neutral": "success", "failure": "failed", "action_required": "failed"}
"""What becomes of a check's conclusion as the state of a commit, of which GitLab knows fewer."""


@dataclass
class GitLab:
    """A project on GitLab; `repo` is its path with groups, or its number."""

    repo: str
    token: str
    url: str = "https://gitlab.com"
    known_author: str | None = None
    noun: str = "merge request"

    def __post_init__(self) -> None:
        library = require_library("gitlab", "GitLab")
        self._error: type[Exception] = library.exceptions.GitlabError
        self._client: Gitlab = library.Gitlab(
            self.url,
            private_token=self.token,
            per_page=PER_PAGE,
            timeout=TIMEOUT_S,
            retry_transient_errors=True,
        )
        self._project = self._client.projects.get(self.repo, lazy=True)
        self._author: str | None = self.known_author

    def author(self) -> str:
        if self._author is None:
            with self._asking():
                self._client.auth()
                self._author = str(self._client.user.username) if self._client.user else ""
        return self._author

    def comments(self, number: int) -> Iterator[Comment]:
        with self._asking(number):
            for each in self._listed(self._notes(number), sort="asc", order_by="created_at"):
                if not each.system:
                    yield Comment(each.id, each.author["username"], each.body or "")

    def add_comment(self, number: int, body: str) -> None:
        with self._asking(number):
            # Not tried again: what was made before its answer got lost would be made twice.
            self._notes(number).create({"body": body}, retry_transient_errors=False)

    def edit_comment(self, number: int, comment: int, body: str) -> None:
        with self._asking(number):
            self._notes(number).update(comment, {"body": body})

    def delete_comment(self, number: int, comment: int) -> None:
        with self._asking(number):
            self._notes(number).delete(comment)

    def pull(self, number: int) -> Pull:
        with self._asking(number):
            return _pull(self._project.mergerequests.get(number))

    def pulls(self, base: str | None = None) -> Iterator[Pull]:
        with self._asking():
            into = {} if base is None else {"target_branch": base}
            for each in self._listed(self._project.mergerequests, state="opened", **into):
                yield _pull(each)

    def pulls_of(self, commit: str) -> Iterator[Pull]:
        with self._asking():
            for each in self._project.commits.get(commit, lazy=True).merge_requests():
                yield _pull(SimpleNamespace(**each))

    def approvals(self, number: int) -> Iterator[Comment]:
        """Yield what approvers of the newest commit wrote, who may push and are not its author.

        GitLab keeps an approval when a commit is pushed after it, unless the project says otherwise, and lets
        maintainers change what others wrote. So only approvals and texts count that are newer than the
        commit's version of the merge request, and only texts as they were written.
        """
        with self._asking(number):
            request = self._project.mergerequests.get(number)
            versions = self._listed(request.diffs)
            heads = [_time(each.created_at) for each in versions if each.head_commit_sha == request.sha]
            since = max(heads, default=None)
            notes = list(self._listed(self._notes(number), sort="asc", order_by="created_at"))
            # A server that does not tell when somebody approved has a note of its own on it.
            told = {
                each.author["id"]: each.created_at for each in notes if each.system and each.body == _APPROVED
            }
            people: dict[int, str] = {}
            if since is None:
                return
            for each in request.approvals.get().approved_by:
                user = each["user"]
                at = each.get("approved_at") or told.get(user["id"], "")
                if at and _time(at) >= since and user["id"] != request.author["id"]:
                    people[user["id"]] = str(user["username"])
            people = {user: name for user, name in people.items() if self._may_push(user)}
            yield from (Comment(0, name, "") for name in people.values())
            for each in notes:
                as_written = each.updated_at == each.created_at and _time(each.created_at) >= since
                if each.author["id"] in people and as_written and not each.system:
                    yield Comment(each.id, people[each.author["id"]], each.body or "")

    def _may_push(self, user: int) -> bool:
        """Return True if a user may push to the project, also as a member of a group above it."""
        try:
            member = self._project.members_all.get(user)
        except self._error as error:
            if getattr(error, "response_code", None) == 404:
                return False
            raise
        return member.access_level >= _DEVELOPER and member.state == "active"

    def post_check(self, check: Check) -> None:
        """A status of the commit; annotations are the report of code quality of the job."""
        data = {
            "state": STATES[check.conclusion],
            "name": check.name,
            "description": check.title[:255],
            **({"target_url": check.details_url} if check.details_url else {}),
        }
        with self._asking():
            self._project.commits.get(check.head, lazy=True).statuses.create(data)

    def issues(self, label: str) -> Iterator[Issue]:
        with self._asking():
            for each in self._listed(self._project.issues, state="all", labels=[label], sort="asc"):
                yield Issue(
                    each.iid,
                    each.author["username"],
                    each.title,
                    each.description or "",
                    each.state == "opened",
                )

    def add_issue(self, title: str, body: str, label: str) -> int:
        with self._asking():
            data = {"title": title, "description": body, "labels": label}
            return int(self._project.issues.create(data, retry_transient_errors=False).iid)

    def edit_issue(self, issue: Issue, title: str, body: str, *, is_open: bool) -> None:
        data = {"title": title, "description": body}
        if is_open != issue.is_open:
            data["state_event"] = "reopen" if is_open else "close"
        with self._asking(issue.number):
            self._project.issues.update(issue.number, data)

    def _listed(self, manager: Any, **words: Any) -> Iterator[Any]:
        """Yield the items of a list. Raises ForgeError for one that does not end."""
        cursors = Cursors(lambda text: ForgeError(text, where=f"{self.repo} at {self.url}"))
        found = manager.list(iterator=True, get_next=False, **words)
        yield from found
        while url := cursors.next(found._list._next_url):
            found._list._query(url, **found._list._kwargs)
            yield from found

    def _notes(self, number: int) -> Any:
        return self._project.mergerequests.get(number, lazy=True).notes

    @contextmanager
    def _asking(self, number: int | None = None) -> Iterator[None]:
        """Errors of the library as ours."""
        import requests

        where = self.repo if number is None else f"{self.repo}!{number}"
        try:
            yield
        except self._error as error:
            status = getattr(error, "response_code", None)
            message = str(getattr(error, "error_message", "") or "")
            raise refusal(status, message, where, TOKEN) from error
        except requests.RequestException as error:
            raise refusal(
                None, f"{type(error).__name__}: {error}", f"{where} at {self.url}", TOKEN
            ) from error
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise ForgeError(
                "the answer is none of GitLab's",
                where=f"{where} at {self.url}",
                detail=f"{type(error).__name__}: {error}",
                hint="look at CI_SERVER_URL",
            ) from error


def _time(text: str) -> datetime:
    """Raises TypeError, ValueError for what is no time of GitLab."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _pull(request: Any) -> Pull:
    is_fork = request.source_project_id != request.target_project_id
    return Pull(request.iid, request.sha or "", request.target_branch, is_fork)
