"""Writes github.json: the operations of GitHub's REST API that pipelines use, from its published OpenAPI.

    npm pack @octokit/openapi@23.0.2 && tar xzf octokit-openapi-23.0.2.tgz
    python tests/ci/descriptions/extract_github.py package

The package (MIT, octokit/openapi) carries github/rest-api-description (MIT) as it is. What is kept is what
tells right from wrong: paths, parameters, bodies and answers, without descriptions, examples and formats.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = "/repos/{owner}/{repo}"
USED = {
    "/user": ["get"],
    f"{REPO}/issues": ["get", "post"],
    f"{REPO}/issues/{{issue_number}}": ["get", "patch"],
    f"{REPO}/issues/{{issue_number}}/comments": ["get", "post"],
    f"{REPO}/issues/comments/{{comment_id}}": ["get", "patch", "delete"],
    f"{REPO}/pulls": ["get"],
    f"{REPO}/pulls/{{pull_number}}": ["get"],
    f"{REPO}/pulls/{{pull_number}}/reviews": ["get"],
    f"{REPO}/commits/{{commit_sha}}/pulls": ["get"],
    f"{REPO}/check-runs": ["post"],
    f"{REPO}/check-runs/{{check_run_id}}": ["patch"],
    f"{REPO}/collaborators/{{username}}/permission": ["get"],
    f"{REPO}/environments/{{environment_name}}": ["get"],
    f"{REPO}/environments/{{environment_name}}/deployment-branch-policies": ["get"],
}
WORDS = (
    "type",
    "enum",
    "required",
    "$ref",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "maxItems",
    "pattern",
)
"""Of a schema, beside those that hold others. Formats are left out: nothing that pipelines send or read hangs
on one."""


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of OpenAPI 3.0 as JSON Schema: `nullable` becomes a type."""
    kept: dict[str, Any] = {word: schema[word] for word in WORDS if word in schema}
    if "properties" in schema:
        kept["properties"] = {name: schema_of(each) for name, each in schema["properties"].items()}
    for word in ("allOf", "anyOf", "oneOf"):
        if word in schema:
            kept[word] = [schema_of(each) for each in schema[word]]
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            kept[word] = schema_of(schema[word])
        elif word in schema:
            kept[word] = schema[word]
    if not schema.get("nullable"):
        return kept
    if "type" not in kept:
        return {"anyOf": [kept, {"type": "null"}]}
    enum = {"enum": [*kept["enum"], None]} if "enum" in kept else {}
    return {**kept, "type": [kept["type"], "null"], **enum}


class Description:
    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        """What a reference leads to; anything else as it is."""
        while "$ref" in value:
            found: Any = self.data
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value

    def operation(self, path: str, method: str) -> dict[str, Any]:
        found = self.data["paths"][path]
        operation = found[method]
        parameters = [
            self.resolved(each) for each in (*found.get("parameters", ()), *operation["parameters"])
        ]
        kept: dict[str, Any] = {
            "parameters": [
                {name: each[name] for name in ("name", "in", "required") if name in each}
                | {"schema": schema_of(each["schema"])}
                for each in parameters
            ],
            "responses": {status: self.content(each) for status, each in operation["responses"].items()},
        }
        if "requestBody" in operation:
            body: dict[str, Any] = self.resolved(operation["requestBody"])
            kept["requestBody"] = {"required": body.get("required", False), "schema": self.content(body)}
        return kept

    def content(self, value: dict[str, Any]) -> Any:
        media = self.resolved(value).get("content", {}).get("application/json")
        return schema_of(media["schema"]) if media else None


def referred(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for each in value.values():
            yield from referred(each)
    elif isinstance(value, list):
        for each in value:
            yield from referred(each)


def main(package: Path) -> None:
    version = json.loads((package / "package.json").read_text())["version"]
    whole = json.loads((package / "generated" / "api.github.com.json").read_text())
    description = Description(whole)
    paths = {
        path: {method: description.operation(path, method) for method in methods}
        for path, methods in USED.items()
    }
    schemas: dict[str, Any] = {}
    waiting = [*referred(paths)]
    while waiting:
        name = waiting.pop()
        if name not in schemas:
            schemas[name] = schema_of(whole["components"]["schemas"][name])
            waiting += referred(schemas[name])
    source = f"@octokit/openapi {version}, MIT; extract_github.py makes it anew"
    (HERE / "github.json").write_text(written({"source": source, "paths": paths, "schemas": schemas}))


def written(data: dict[str, Any]) -> str:
    """JSON with a line for each path and each schema, so that differences can be read."""
    parts: list[str] = []
    for name, value in data.items():
        if isinstance(value, dict):
            lines = (f"{json.dumps(key)}: {json.dumps(value[key])}" for key in sorted(value))
            parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
