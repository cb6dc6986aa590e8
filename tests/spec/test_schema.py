"""The JSON Schema for editors: what is right passes, what is plainly wrong does not."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer.testing import CliRunner

from orch.cli.validate import schema_command as command
from orch.spec.models import KINDS, MODELS
from orch.spec.schema import kinds, schema

HERE = Path(__file__).parent
GOOD = sorted(
    path
    for folder in ("good", "reference", "launch")
    for path in (HERE / folder).rglob("*.yml")
    if path.name not in ("windows-line-ends.yml", "byte-order-mark.yml")
)


class Core(yaml.SafeLoader):
    """YAML 1.2's core schema, as editors read it: `yes`, `24:00:00` and `0o7` are text here."""


Core.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
):
    found = (f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"))
    for character in [*first, *([""] if tag == "null" else [])]:
        Core.yaml_implicit_resolvers.setdefault(character, []).append(found)
for word in ("int", "float"):
    Core.add_constructor(
        f"tag:yaml.org,2002:{word}",
        lambda loader, node: float(node.value) if "." in node.value else int(float(node.value)),
    )


def documents(path: Path) -> list[tuple[str | None, Any]]:
    """Documents with the kind whose schema an editor would choose."""
    kind = "project" if path.name == "orch.yml" else None
    read = [each for each in yaml.load_all(path.read_text("utf-8"), Core) if each is not None]
    return [("project" if "projects" in each else kind, each) for each in read]


@cache
def validator(kind: str | None) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema(kind))


def complaints(kind: str | None, document: Any) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(document)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [None, *kinds()])
def test_every_schema_is_one_of_the_draft(kind: str | None) -> None:
    made = schema(kind)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize("path", GOOD, ids=lambda path: str(path.relative_to(HERE)))
def test_every_good_document_passes(path: Path) -> None:
    for kind, document in documents(path):
        assert complaints(kind, document) == []
        if kind is None:
            assert complaints(document["type"], document) == []


WRONG = """
attribute-name-is-no-property backend-unknown choice-far-off commands-as-text cpu-architecture cpu-words
dev-ide disk-mapping-unknown duration-as-a-clock duration-decimal duration-in-words files-as-text
fleet-budget fleet-budget-number fleet-health fleet-network-misspelt fleet-network-words
fleet-retry-events fleet-tags flag-in-words gpu-too-many memory-unit memory-words mpirun-hostfile-word
name-with-capitals nodes-a-list nodes-not-a-number nodes-with-a-dash placement-word ssh-hosts-as-text
ssh-hosts-missing ssh-known-hosts-word task-array task-ports-as-number task-priority-high
task-registry-half task-signal-when torchrun-a-list type-misspelt-word type-missing-of-fleet type-service
unknown-property unknown-property-in-resources unknown-property-misplaced-gpu volume-words
volume-without-backend projects-file project-policies/orch project-oci/orch
"""


@pytest.mark.parametrize("name", WRONG.split())
def test_what_is_plainly_wrong_does_not_pass(name: str) -> None:
    path = HERE / "bad" / f"{name}.yml"
    assert any(complaints(kind, document) for kind, document in documents(path))


def test_every_property_has_a_description() -> None:
    for name, block in schema()["$defs"].items():  # type: ignore[union-attr,attr-defined]
        objects = [part for part in (block, *block.get("anyOf", ())) if "properties" in part]
        for part in objects:
            assert all(each.get("description") for each in part["properties"].values()), name


def test_defaults_are_written_as_a_person_would() -> None:
    fleet = schema("fleet")["$defs"]["Fleet"]["properties"]  # type: ignore[index]
    assert fleet["idle_duration"]["default"] == "3d"
    assert fleet["placement"]["default"] == "any"
    assert set(KINDS) < set(MODELS)


def test_the_verb_prints_a_schema_and_knows_its_kinds() -> None:
    app = typer.Typer()
    app.command()(command)
    whole = CliRunner().invoke(app, [])
    assert json.loads(whole.stdout)["title"] == "orch: a document"
    assert json.loads(CliRunner().invoke(app, ["task"]).stdout)["$ref"] == "#/$defs/Task"
    wrong = CliRunner().invoke(app, ["fleeet"])
    assert wrong.exit_code == 2
    assert "did you mean 'fleet'?" in " ".join(re.findall(r"[\w'?]+", wrong.output))
