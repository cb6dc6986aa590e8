"""What of a look at a cloud is the fleet whose state was lost, and what of a rebuilt state is kept. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import struct_pb2

from orch.components.marks.marked import MarkedResource, Survey
from orch.spec.errors import OrchError
from orch.stacks.states.adopting import MISSING, plain, set_text
from orch.stacks.states.found_resources import resources_of, without_missing

MARK = "infra/train/1a2b3c"
NODE = MarkedResource(
    "aws", MARK, "instance", "i-0", "train-0", "us-east-1", type="aws:ec2/instance:Instance"
)
NETWORK = replace(NODE, kind="vpc", id="vpc-0", name="train-vpc", type="aws:ec2/vpc:Vpc")


def of_fleet(*resources: MarkedResource, mark: str | None = None, foreign: int = 0) -> tuple[str, ...]:
    found = resources_of(Survey(resources, foreign), "infra", "train", mark, "1a2b3c")
    return tuple(each.id for each in found)


def test_all_that_has_the_mark_of_this_state_is_the_fleet() -> None:
    elsewhere = replace(NODE, mark="infra/serve/1a2b3c", id="i-9")
    assert of_fleet(NODE, NETWORK, elsewhere) == ("i-0", "vpc-0")


def test_types_tell_resources_of_one_name_apart() -> None:
    same_name = replace(NODE, type="aws:ec2/eip:Eip", id="eip-0")
    assert of_fleet(NODE, same_name) == ("i-0", "eip-0")


COLLEAGUE = replace(NODE, mark="infra/train/ffffff", id="i-7")


@pytest.mark.parametrize(
    ("resources", "code", "words"),
    [
        ((), "ORCH431", "infra/train/…"),
        ((replace(NODE, mark="infra/serve/1a2b3c"),), "ORCH431", "of this project there is: serve"),
        ((NODE, replace(NODE, id="i-1")), "ORCH432", "several resources have one name"),
        ((NODE, COLLEAGUE), "ORCH432", "`--stack infra/train/1a2b3c`, or infra/train/ffffff"),
        ((COLLEAGUE,), "ORCH432", "`--stack infra/train/ffffff`"),
        ((replace(NODE, sure=False),), "ORCH432", "labels alone"),
        ((NODE, replace(NETWORK, backend="gcp")), "ORCH432", "several backends"),
    ],
)
def test_what_is_not_clear_is_refused(resources: tuple[MarkedResource, ...], code: str, words: str) -> None:
    with pytest.raises(OrchError) as raised:
        of_fleet(*resources)
    assert raised.value.code == code
    assert words in raised.value.text()
    assert all(each.id in raised.value.text() for each in resources if code == "ORCH432")


def test_a_mark_that_a_person_names_is_taken_alone() -> None:
    assert of_fleet(NODE, COLLEAGUE, mark=COLLEAGUE.mark) == ("i-7",)
    assert of_fleet(NODE, COLLEAGUE, mark=MARK) == ("i-0",)
    with pytest.raises(OrchError, match="infra/train/000000"):
        of_fleet(NODE, mark="infra/train/000000")


def test_resources_of_other_projects_are_counted() -> None:
    with pytest.raises(OrchError) as raised:
        of_fleet(foreign=3)
    assert "of other projects: 3 resources" in raised.value.text()


def test_what_was_not_found_is_in_no_record_of_a_rebuilt_state() -> None:
    gone = {"urn": "urn:a", "id": f"{MISSING}train-template"}
    node: dict[str, Any] = {
        "urn": "urn:b",
        "id": "i-0",
        "dependencies": ["urn:a", "urn:c"],
        "propertyDependencies": {"launchTemplate": ["urn:a"], "tags": None},
    }
    whole = {"version": 3, "deployment": {"resources": [gone, node], "manifest": {}}}
    kept = without_missing(whole)
    (record,) = kept["deployment"]["resources"]
    assert record["dependencies"] == ["urn:c"]
    assert record["propertyDependencies"] == {"launchTemplate": [], "tags": []}
    assert (kept["version"], node["dependencies"]) == (3, ["urn:a", "urn:c"])


def test_secrets_of_the_engine_are_read_and_keep_their_mark() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "former"}
    struct = struct_pb2.Struct()
    struct.update({"key": secret, "open": "former", "list": [1, {"a": True}], "none": None})
    assert plain(struct) == {"key": "former", "open": "former", "list": [1, {"a": True}], "none": None}
    for name in ("key", "open"):
        set_text(struct.fields[name], "new")
    assert plain(struct)["key"] == plain(struct)["open"] == "new"
    assert len(struct.fields["key"].struct_value.fields) == 2
