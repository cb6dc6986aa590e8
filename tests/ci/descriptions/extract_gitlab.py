"""Writes gitlab.json: the requests to GitLab's REST API that pipelines make, by the structs of its Go client.

    go mod download -json gitlab.com/gitlab-org/api/client-go/v2@v2.15.0    # tells the folder
    python tests/ci/descriptions/extract_gitlab.py FOLDER

GitLab's own OpenAPI document is in no package. Its official client for Go (Apache-2.0) has each request and
answer as a struct whose tags are the names on the wire. What they do not tell is which properties an answer
always has: names and types are checked, and nothing is required.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from extract_github import written

HERE = Path(__file__).parent
PROJECT = "/api/v4/projects/{id}"
NOTES = f"{PROJECT}/merge_requests/{{merge_request}}/notes"

USED: dict[str, dict[str, tuple[str | None, str | None, str]]] = {
    "/api/v4/user": {"get": (None, "User", "200")},
    f"{PROJECT}/merge_requests": {"get": ("ListProjectMergeRequestsOptions", "[]BasicMergeRequest", "200")},
    f"{PROJECT}/merge_requests/{{merge_request}}": {"get": (None, "MergeRequest", "200")},
    f"{PROJECT}/merge_requests/{{merge_request}}/approvals": {"get": (None, "MergeRequestApprovals", "200")},
    f"{PROJECT}/merge_requests/{{merge_request}}/versions": {
        "get": ("GetMergeRequestDiffVersionsOptions", "[]MergeRequestDiffVersion", "200")
    },
    f"{PROJECT}/members/all/{{user}}": {"get": (None, "ProjectMember", "200")},
    NOTES: {
        "get": ("ListMergeRequestNotesOptions", "[]Note", "200"),
        "post": ("CreateMergeRequestNoteOptions", "Note", "201"),
    },
    f"{NOTES}/{{note_id}}": {
        "get": (None, "Note", "200"),
        "put": ("UpdateMergeRequestNoteOptions", "Note", "200"),
        "delete": (None, None, "204"),
    },
    f"{PROJECT}/repository/commits/{{sha}}/merge_requests": {
        "get": ("ListOptions", "[]BasicMergeRequest", "200")
    },
    f"{PROJECT}/statuses/{{sha}}": {"post": ("SetCommitStatusOptions", "CommitStatus", "201")},
    f"{PROJECT}/issues": {
        "get": ("ListProjectIssuesOptions", "[]Issue", "200"),
        "post": ("CreateIssueOptions", "Issue", "201"),
    },
    f"{PROJECT}/issues/{{issue}}": {"put": ("UpdateIssueOptions", "Issue", "200")},
}
"""Path and method -> struct of the query or body, struct of the answer, status."""

ERROR = {"type": "object", "properties": {"message": {}, "error": {"type": "string"}}}
PLAIN = {
    "string": "string",
    "bool": "boolean",
    "float64": "number",
    **dict.fromkeys(("int", "int64"), "integer"),
    **dict.fromkeys(("time.Time", "ISOTime"), "string"),
}
LISTS = {"Labels", "LabelOptions", "AssigneeIDValue"}
"""Types with a form of their own on the wire, as labels that are joined by commas."""


class Client:
    """The structs of the client's package, and its other types by name."""

    def __init__(self, folder: Path) -> None:
        files = [each for each in folder.glob("*.go") if not each.name.endswith("_test.go")]
        text = "\n".join(each.read_text() for each in files)
        found = re.findall(r"^\t?(?:type )?(\w+) struct \{\n(.*?)^\t?\}", text, re.MULTILINE | re.DOTALL)
        self.structs: dict[str, str] = dict(found)
        self.others: dict[str, str] = dict(
            re.findall(r"^\t?(?:type )?(\w+) (string|int64)$", text, re.MULTILINE)
        )
        self.schemas: dict[str, Any] = {"basic-error": ERROR}

    def schema(self, kind: str) -> dict[str, Any]:
        """Of a type of Go. A pointer may be null, and a type that is not known anything."""
        if kind.startswith("*"):
            inner = self.schema(kind[1:])
            return {"anyOf": [inner, {"type": "null"}]} if inner else {}
        if kind.startswith("[]"):
            return {"type": ["array", "null"], "items": self.schema(kind[2:])}
        kind = self.others.get(kind, kind)
        if kind in PLAIN:
            return {"type": [PLAIN[kind], "null"]}
        if kind in LISTS or kind not in self.structs:
            return {}
        if kind not in self.schemas:
            self.schemas[kind] = {}
            self.schemas[kind] = {"type": ["object", "null"], "properties": self.properties(kind)}
        return {"$ref": f"#/components/schemas/{kind}"}

    def properties(self, struct: str, tag: str = "json") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for line in self.structs[struct].splitlines():
            if embedded := re.fullmatch(r"\t+\*?([A-Z]\w+)", line):
                found |= self.properties(embedded[1], tag)
            elif match := re.match(rf'\t+\w+ +(\S+) +`.*?\b{tag}:"([^",]+)', line):
                found[match[2].removesuffix("[]")] = self.schema(match[1])
        return found

    def operation(self, method: str, options: str | None, answer: str | None, status: str) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "parameters": [],
            "responses": {status: None if answer is None else self.schema(answer)},
        }
        if options is not None and method == "get":
            names = self.properties(options, "url")
            kept["parameters"] = [{"name": name, "in": "query", "schema": {}} for name in names]
        elif options is not None:
            schema = {"type": "object", "properties": self.properties(options, "url")}
            kept["requestBody"] = {"required": True, "schema": schema}
        return kept


def main(folder: Path) -> None:
    client = Client(folder)
    paths = {
        path: {method: client.operation(method, *each) for method, each in methods.items()}
        for path, methods in USED.items()
    }
    source = f"gitlab.com/gitlab-org/api/client-go/{folder.name}, Apache-2.0; extract_gitlab.py makes it anew"
    (HERE / "gitlab.json").write_text(written({"source": source, "paths": paths, "schemas": client.schemas}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
