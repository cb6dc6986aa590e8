"""Servers that speak the part of the APIs of GitHub and GitLab that pipelines use, on 127.0.0.1.

Shapes, limits and status codes are those of the published descriptions: github/rest-api-description (REST,
2022-11-28) and GitLab's API documentation (v4: notes, merge requests, issues, commits). What is needed of a
request and is missing there is answered as these say. Each request and each answer is held against
the published description of its operation, GitLab's against its client's; a test in which one differs fails.
Nothing here imports orch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from kit.clouds.openapi import GITHUB, GITLAB, Description, Exchange
from kit.forges.githubshapes import DOCUMENTATION, WHEN, Shapes

BOT = "github-actions[bot]"

Answer = tuple[int, Any]
Json = dict[str, Any]


class Refused(Exception):
    """An answer that ends a request."""

    def __init__(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.data, self.headers = status, data, headers or {}


@dataclass
class Call:
    method: str
    path: str
    data: Any


@dataclass
class Server:
    """A forge. `failures` are answers for the next requests of a method, in order, before it does anything
    (or, with `after`, once it has done it)."""

    calls: list[Call] = field(default_factory=list)
    failures: list[tuple[str, Refused, bool]] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    description: Description | None = None
    problems: list[str] = field(default_factory=list)
    """What of requests and answers is not as described."""

    def answer(self, method: str, path: str, query: dict[str, str], data: Any, token: str) -> Answer:
        raise NotImplementedError

    def writes(self) -> list[Call]:
        return [each for each in self.calls if each.method != "GET"]

    def fail(
        self, method: str, status: int, data: Any = None, *, after: bool = False, **headers: str
    ) -> None:
        """Answer the next request of a method so."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.failures.append((method, Refused(status, data or {"message": "failed"}, names), after))

    def handled(self, method: str, target: str, body: bytes, token: str) -> tuple[int, Any, dict[str, str]]:
        """Status, answer and headers; both the request and the answer are held against the description."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        data = json.loads(body) if body else None
        status, answer, headers = self._handled(method, parts.path, query, data, token)
        if self.description is not None:
            self.problems += self.description.problems(
                Exchange(method, parts.path, query, data, status, answer)
            )
        return status, answer, headers

    def _handled(
        self, method: str, path: str, query: dict[str, str], data: Any, token: str
    ) -> tuple[int, Any, dict[str, str]]:
        with self.lock:
            self.calls.append(Call(method, path, data))
            failure = next((each for each in self.failures if each[0] == method), None)
            if failure is not None:
                self.failures.remove(failure)
            try:
                if failure is not None and not failure[2]:
                    raise failure[1]
                status, found = self.answer(method, path, query, data, token)
                if failure is not None:
                    raise failure[1]
            except Refused as refused:
                return refused.status, refused.data, refused.headers
        if method == "GET" and isinstance(found, list):
            return self.page(path, query, found)
        return status, found, {}

    def page(self, path: str, query: dict[str, str], rows: list[Any]) -> tuple[int, Any, dict[str, str]]:
        """One page, with the links to the others in `Link`."""
        size, number = min(int(query.get("per_page", self.default_page)), 100), int(query.get("page", 1))
        last = max((len(rows) + size - 1) // size, 1)
        links = [
            f'<{self.url}{path}?{urlencode({**query, "page": at})}>; rel="{name}"'
            for name, at, there in (
                ("prev", number - 1, number > 1),
                ("next", number + 1, number < last),
                ("last", last, number < last),
                ("first", 1, number > 1),
            )
            if there
        ]
        headers = {"Link": ", ".join(links)} if links else {}
        return 200, rows[(number - 1) * size : number * size], headers

    default_page = 30

    @contextmanager
    def running(self) -> Iterator[Server]:
        handler = type("Handler", (_Handler,), {"forge": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        if self.problems:
            raise AssertionError("\n".join(self.problems))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    forge: Server

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
        token = token.removeprefix("token ").removeprefix("Bearer ")
        status, data, headers = self.forge.handled(self.command, self.path, body, token)
        text = b"" if status == 204 else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _do

    def log_message(self, *words: Any) -> None:
        pass


# GitHub

MOST_BODY = 65_536
MOST_ANNOTATIONS = 50


@dataclass
class GitHubServer(Server):
    """One repository. `logins`: token -> login; a login that ends with `[bot]` is an installation's, which
    `GET /user` refuses. `readers`: tokens that may not write. `environments`: whether each has reviewers, and
    which branches may deploy to it, None for all."""

    repo: str = "acme/cluster"
    logins: dict[str, str] = field(default_factory=lambda: {"workflow": BOT, "person": "ada"})
    readers: set[str] = field(default_factory=set)
    comments: dict[int, list[Json]] = field(default_factory=dict)
    pulls: dict[int, Json] = field(default_factory=dict)
    issues: dict[int, Json] = field(default_factory=dict)
    checks: dict[int, Json] = field(default_factory=dict)
    reviews: dict[int, list[Json]] = field(default_factory=dict)
    permissions: dict[str, str] = field(default_factory=lambda: {"ada": "write"})
    environments: dict[str, tuple[bool, list[str] | None]] = field(default_factory=dict)
    ids: int = 1000
    description: Description | None = GITHUB

    @property
    def shapes(self) -> Shapes:
        return Shapes(self.url, self.repo)

    def add_pull(self, number: int, head: str, base: str = "main", fork: str | None = None) -> None:
        self.pulls[number] = self.shapes.pull(number, head, base, fork)

    def merge(self, number: int, commit: str) -> None:
        """Merge a pull request: this commit is on its base then."""
        self.pulls[number] |= {
            **{"state": "closed", "merged": True, "merged_by": self.shapes.user("ada")},
            **{"merged_at": WHEN, "closed_at": WHEN, "merge_commit_sha": commit},
        }

    def add_comment(self, number: int, login: str, body: str) -> Json:
        self.ids += 1
        made = self.shapes.comment(number, self.ids, login, body)
        self.comments.setdefault(number, []).append(made)
        return made

    def answer(self, method: str, path: str, query: dict[str, str], data: Any, token: str) -> Answer:
        login = self.logins.get(token)
        if login is None:
            raise Refused(401, {"message": "Bad credentials", "status": "401"})
        if path == "/user":
            if login.endswith("[bot]"):
                raise Refused(403, {"message": "Resource not accessible by integration"})
            return 200, self.shapes.own_user(login)
        prefix = f"/repos/{self.repo}"
        if not path.startswith(f"{prefix}/"):
            raise Refused(404, {"message": "Not Found"})
        if method != "GET" and token in self.readers:
            raise Refused(403, {"message": "Resource not accessible by integration"})
        rest = path.removeprefix(prefix)
        for pattern, wanted, handler in self._routes():
            match = re.fullmatch(pattern, rest)
            if match and wanted == method:
                words = [int(each) if each.isdigit() and len(each) < 40 else each for each in match.groups()]
                return handler(*words, query=query, data=data or {}, login=login)
        raise Refused(404, {"message": "Not Found"})

    def _routes(self) -> Iterator[tuple[str, str, Callable[..., Answer]]]:
        yield r"/issues/(\d+)/comments", "GET", self._comments
        yield r"/issues/(\d+)/comments", "POST", self._comment
        yield r"/issues/comments/(\d+)", "GET", self._one_comment
        yield r"/issues/comments/(\d+)", "PATCH", self._edit_comment
        yield r"/issues/comments/(\d+)", "DELETE", self._delete_comment
        yield r"/pulls/(\d+)", "GET", self._pull
        yield r"/pulls/(\d+)/reviews", "GET", self._reviews
        yield r"/pulls", "GET", self._pulls
        yield r"/commits/([0-9a-f]{40})/pulls", "GET", self._pulls_of
        yield r"/collaborators/([^/]+)/permission", "GET", self._permission
        yield r"/environments/([^/]+)", "GET", self._environment
        yield r"/environments/([^/]+)/deployment-branch-policies", "GET", self._branch_policies
        yield r"/check-runs", "POST", self._check
        yield r"/check-runs/(\d+)", "PATCH", self._edit_check
        yield r"/issues", "GET", self._issues
        yield r"/issues", "POST", self._issue
        yield r"/issues/(\d+)", "GET", self._one_issue
        yield r"/issues/(\d+)", "PATCH", self._edit_issue

    def _environment(self, name: str, **_: Any) -> Answer:
        if name not in self.environments:
            raise Refused(404, {"message": "Not Found"})
        return 200, self.shapes.environment(name, *self.environments[name])

    def _branch_policies(self, name: str, **_: Any) -> Answer:
        _, branches = self.environments[name]
        rows = [{"id": at, "node_id": f"n{at}", "name": each} for at, each in enumerate(branches or ())]
        return 200, {"total_count": len(rows), "branch_policies": rows}

    def _comments(self, number: int, **_: Any) -> Answer:
        if number not in self.pulls:
            raise Refused(404, {"message": "Not Found"})
        return 200, list(self.comments.get(number, []))

    def _comment(self, number: int, *, data: Json, login: str, **_: Any) -> Answer:
        if number not in self.pulls:
            raise Refused(404, {"message": "Not Found"})
        return 201, self.add_comment(number, login, _body(data))

    def _find(self, comment: int) -> tuple[list[Json], Json]:
        for rows in self.comments.values():
            for each in rows:
                if each["id"] == comment:
                    return rows, each
        raise Refused(404, {"message": "Not Found"})

    def _one_comment(self, comment: int, **_: Any) -> Answer:
        return 200, self._find(comment)[1]

    def _edit_comment(self, comment: int, *, data: Json, login: str, **_: Any) -> Answer:
        found = self._find(comment)[1]
        if found["user"]["login"] != login:
            raise Refused(403, {"message": "Resource not accessible by integration"})
        found["body"] = _body(data)
        return 200, found

    def _delete_comment(self, comment: int, **_: Any) -> Answer:
        rows, found = self._find(comment)
        rows.remove(found)
        return 204, None

    def _pull(self, number: int, **_: Any) -> Answer:
        if number not in self.pulls:
            raise Refused(404, {"message": "Not Found"})
        return 200, self.pulls[number]

    def add_review(self, number: int, login: str, commit: str, *, body: str, state: str = "APPROVED") -> None:
        self.ids += 1
        made = self.shapes.review(number, self.ids, login) | {
            "body": body,
            "commit_id": commit,
            "state": state,
        }
        self.reviews.setdefault(number, []).append(made)

    def _reviews(self, number: int, **_: Any) -> Answer:
        if number not in self.pulls:
            raise Refused(404, {"message": "Not Found"})
        return 200, list(self.reviews.get(number, []))

    def _pulls(self, *, query: dict[str, str], **_: Any) -> Answer:
        base, state = query.get("base"), query.get("state", "open")
        return 200, [
            self.shapes.listed(each)
            for each in self.pulls.values()
            if base in (None, each["base"]["ref"]) and state in ("all", each["state"])
        ]

    def _pulls_of(self, commit: str, **_: Any) -> Answer:
        """Of a commit on the default branch the pull request that brought it, of another the open ones."""
        merged = [each for each in self.pulls.values() if each["merged"]]
        found = [each for each in merged if each["merge_commit_sha"] == commit]
        still_open = (
            each for each in self.pulls.values() if each["state"] == "open" and each["head"]["sha"] == commit
        )
        return 200, [self.shapes.listed(each) for each in found or still_open]

    def _permission(self, of: str, **_: Any) -> Answer:
        person = unquote(of)
        return 200, self.shapes.permission(person, self.permissions.get(person, "read"))

    def _check(self, *, data: Json, **_: Any) -> Answer:
        if not data.get("name") or not data.get("head_sha"):
            raise _invalid("CheckRun", "missing_field", "name")
        self.ids += 1
        made = self.shapes.check(self.ids, data["name"], data["head_sha"])
        self._take(made, data)
        self.checks[self.ids] = made
        return 201, _without_annotations(made)

    def _edit_check(self, check: int, *, data: Json, **_: Any) -> Answer:
        self._take(self.checks[check], data)
        return 200, _without_annotations(self.checks[check])

    def _take(self, check: Json, data: Json) -> None:
        output = data.get("output") or {}
        rows = output.get("annotations") or []
        if len(rows) > MOST_ANNOTATIONS:
            raise _invalid("CheckRun", "invalid", "annotations")
        if output and not (output.get("title") and output.get("summary")):
            raise _invalid("CheckRun", "missing_field", "output.summary")
        if len(output.get("summary") or "") > 65_535:
            raise _invalid("CheckRun", "invalid", "output.summary")
        for row in rows:
            needed = {"path", "start_line", "end_line", "annotation_level", "message"}
            levels = ("notice", "warning", "failure")
            if not needed <= set(row) or row["annotation_level"] not in levels or row["path"].startswith("/"):
                raise _invalid("CheckRun", "invalid", "annotations")
        if data.get("status") == "completed" and "conclusion" not in data:
            raise _invalid("CheckRun", "missing_field", "conclusion")
        check |= {name: data[name] for name in ("status", "conclusion", "details_url") if name in data}
        check["output"] |= {name: output[name] for name in ("title", "summary") if name in output}
        check["output"]["annotations"] += rows

    def _issues(self, *, query: dict[str, str], **_: Any) -> Answer:
        labels = set(filter(None, query.get("labels", "").split(",")))
        state = query.get("state", "open")
        rows = [
            each
            for each in self.issues.values()
            if labels <= {label["name"] for label in each["labels"]} and state in ("all", each["state"])
        ]
        return 200, sorted(rows, key=lambda each: -each["number"])

    def _issue(self, *, data: Json, login: str, **_: Any) -> Answer:
        if not data.get("title"):
            raise _invalid("Issue", "missing_field", "title")
        number = max([*self.issues, *self.pulls, 0]) + 1
        labels = data.get("labels", [])
        self.issues[number] = self.shapes.issue(number, login, data["title"], _body(data), labels)
        return 201, self.issues[number]

    def _one_issue(self, number: int, **_: Any) -> Answer:
        if number not in self.issues:
            raise Refused(404, {"message": "Not Found"})
        return 200, self.issues[number]

    def _edit_issue(self, number: int, *, data: Json, **_: Any) -> Answer:
        if "body" in data:
            _body(data)
        self.issues[number] |= {name: data[name] for name in ("title", "body", "state") if name in data}
        return 200, self.issues[number]


def _body(data: Json) -> str:
    body = data.get("body")
    if not isinstance(body, str) or not body.strip():
        raise _invalid("IssueComment", "missing_field", "body")
    if len(body) > MOST_BODY:
        text = f"Body is too long (maximum is {MOST_BODY} characters)"
        error = {"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": text}
        raise Refused(
            422, {"message": "Validation Failed", "errors": [error], "documentation_url": DOCUMENTATION}
        )
    return body


def _invalid(resource: str, code: str, name: str) -> Refused:
    error = {"resource": resource, "code": code, "field": name}
    return Refused(422, {"message": "Invalid request", "errors": [error], "documentation_url": DOCUMENTATION})


def _without_annotations(check: Json) -> Json:
    output = check["output"]
    count = len(output["annotations"])
    kept = {name: value for name, value in output.items() if name != "annotations"}
    return {**check, "output": {**kept, "annotations_count": count}}


# GitLab

MOST_NOTE = 1_000_000


@dataclass
class GitLabServer(Server):
    """One project, `group/cluster`, which is number 7."""

    project: str = "group/cluster"
    users: dict[str, str] = field(default_factory=lambda: {"project-token": "project_7_bot"})
    notes: dict[int, list[Json]] = field(default_factory=dict)
    requests: dict[int, Json] = field(default_factory=dict)
    issues: dict[int, Json] = field(default_factory=dict)
    statuses: list[Json] = field(default_factory=list)
    approved: dict[int, list[Json]] = field(default_factory=dict)
    versions: dict[int, list[Json]] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    """Access levels of members, inherited ones too: 20 reads, 30 may push."""
    people: dict[str, int] = field(default_factory=lambda: {"project_7_bot": 1, "grace": 2})
    ids: int = 100
    description: Description | None = GITLAB
    default_page = 20

    def person(self, login: str) -> Json:
        number = self.people.setdefault(login, len(self.people) + 1)
        return {"id": number, "username": login, "name": login, "state": "active"}

    def push(self, number: int, sha: str, at: str = WHEN) -> None:
        """Another commit is the head of a merge request: it gets a version, and its approvals stay."""
        self.ids += 1
        made = {"id": self.ids, "head_commit_sha": sha, "created_at": at, "state": "collected"}
        self.versions.setdefault(number, []).insert(0, made)
        self.requests[number]["sha"] = sha

    def approve(self, number: int, login: str, at: str | None = WHEN) -> None:
        """`at`: None of a server that does not tell when; it has the note of the system."""
        row = {"user": self.person(login), **({} if at is None else {"approved_at": at})}
        self.approved.setdefault(number, []).append(row)

    def add_request(self, number: int, sha: str, target: str = "main", source: int = 7) -> None:
        self.requests[number] = {
            "id": number + 900,
            "iid": number,
            "project_id": 7,
            "state": "opened",
            "sha": sha,
            "source_branch": "change",
            "target_branch": target,
            "author": self.person("grace"),
            "source_project_id": source,
            "target_project_id": 7,
        }
        self.push(number, sha)

    def add_note(self, number: int, login: str, body: str, *, system: bool = False, at: str = WHEN) -> Json:
        self.ids += 1
        made = {
            "id": self.ids,
            "body": body,
            "author": self.person(login),
            "created_at": at,
            "updated_at": at,
            "system": system,
            "noteable_id": number + 900,
            "noteable_iid": number,
            "noteable_type": "MergeRequest",
            "resolvable": False,
        }
        self.notes.setdefault(number, []).append(made)
        return made

    def answer(self, method: str, path: str, query: dict[str, str], data: Any, token: str) -> Answer:
        login = self.users.get(token)
        if login is None:
            raise Refused(401, {"message": "401 Unauthorized"})
        rest = path.removeprefix("/api/v4")
        if rest == "/user":
            return 200, self.person(login)
        match = re.fullmatch(r"/projects/([^/]+)(/.*)", rest)
        if not match or unquote(match[1]) not in ("7", self.project):
            raise Refused(404, {"message": "404 Project Not Found"})
        rest = match[2]
        data = data or {}
        if found := re.fullmatch(r"/merge_requests/(\d+)/approvals", rest):
            return 200, {"iid": int(found[1]), "approved_by": self.approved.get(int(found[1]), [])}
        if found := re.fullmatch(r"/merge_requests/(\d+)/versions", rest):
            return 200, self.versions.get(int(found[1]), [])
        if found := re.fullmatch(r"/members/all/(\d+)", rest):
            login = next((name for name, number in self.people.items() if str(number) == found[1]), "")
            if login not in self.levels:
                raise Refused(404, {"message": "404 Not found"})
            return 200, {**self.person(login), "access_level": self.levels[login]}
        if found := re.fullmatch(r"/merge_requests/(\d+)(/notes(?:/(\d+))?)?", rest):
            number = int(found[1])
            if number not in self.requests:
                raise Refused(404, {"message": "404 Not found"})
            if not found[2]:
                return 200, self.requests[number]
            return self._notes(number, found[3], Call(method, query.get("sort", "desc"), data), login)
        if rest == "/merge_requests" and method == "GET":
            rows = [
                each
                for each in self.requests.values()
                if query.get("target_branch") in (None, each["target_branch"])
                and query.get("state") in (None, "all", each["state"])
            ]
            return 200, rows
        if found := re.fullmatch(r"/repository/commits/([0-9a-f]+)/merge_requests", rest):
            of = found[1]
            rows = self.requests.values()
            return 200, [each for each in rows if of in (each["sha"], each.get("merge_commit_sha"))]
        if (found := re.fullmatch(r"/statuses/([0-9a-f]+)", rest)) and method == "POST":
            if data.get("state") not in ("pending", "running", "success", "failed", "canceled", "skipped"):
                raise Refused(400, {"error": "state does not have a valid value"})
            self.ids += 1
            made = {
                "id": self.ids,
                "sha": found[1],
                "status": data["state"],
                "name": data.get("name", "default"),
            }
            self.statuses.append({**made, "description": data.get("description")})
            return 201, made
        if found := re.fullmatch(r"/issues(?:/(\d+))?", rest):
            return self._issues(method, found[1], query, data, login)
        raise Refused(404, {"error": "404 Not Found"})

    def _notes(self, number: int, note: str | None, call: Call, login: str) -> Answer:
        method, sort, data = call.method, call.path, call.data
        rows = self.notes.setdefault(number, [])
        if note is None and method == "GET":
            return 200, rows if sort == "asc" else rows[::-1]
        if method in ("POST", "PUT") and len(data.get("body") or "") > MOST_NOTE:
            raise Refused(400, {"message": {"note": ["is too long (maximum is 1000000 characters)"]}})
        if note is None and method == "POST":
            return 201, self.add_note(number, login, data["body"])
        found = next((each for each in rows if str(each["id"]) == note), None)
        if found is None:
            raise Refused(404, {"message": "404 Note Not Found"})
        if found["author"]["username"] != login:
            raise Refused(403, {"message": "403 Forbidden"})
        if method == "DELETE":
            rows.remove(found)
            return 204, None
        found["body"] = data["body"]
        return 200, found

    def _issues(
        self, method: str, issue: str | None, query: dict[str, str], data: Json, login: str
    ) -> Answer:
        if issue is None and method == "GET":
            labels = set(filter(None, (query.get("labels") or query.get("labels[]") or "").split(",")))
            return 200, [each for each in self.issues.values() if labels <= set(each["labels"])]
        if issue is None:
            number = len(self.issues) + 1
            self.issues[number] = {
                "id": number + 300,
                "iid": number,
                "project_id": 7,
                "title": data["title"],
                "description": data.get("description"),
                "state": "opened",
                "labels": [each for each in (data.get("labels") or "").split(",") if each],
                "author": {"id": 1, "username": login, "name": login},
            }
            return 201, self.issues[number]
        found = self.issues[int(issue)]
        found |= {name: data[name] for name in ("title", "description") if name in data}
        if event := data.get("state_event"):
            found["state"] = {"close": "closed", "reopen": "opened"}[event]
        return 200, found
