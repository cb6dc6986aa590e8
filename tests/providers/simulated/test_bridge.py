"""What the provider knows of pulumi-aws, and how it tells differences."""

from __future__ import annotations

from typing import Any

import pytest
from kit.engine.provider_tables import judge, judge_words

from orch.providers.orch.values import UNKNOWN
from orch.rehearsal.aws.plugin import schemas, types
from orch.rehearsal.pulumi.differences import PropertyDifference, differences, refers
from orch.rehearsal.pulumi.schema import Schema

TOKENS = sorted(types())


def sdk_class(token: str) -> Any:
    import pulumi_aws

    package, rest = token.removeprefix("aws:").split("/")
    return getattr(getattr(pulumi_aws, package), rest.split(":")[1])


@pytest.mark.parametrize("token", TOKENS)
def test_properties_are_those_of_the_installed_sdk(token: str) -> None:
    judge(schemas()[token], sdk_class(token))


def test_what_is_said_of_properties_is_said_of_ones_that_are_there() -> None:
    assert set(schemas()) == set(types())
    judge_words(schemas())


def schema(**more: Any) -> Schema:
    names = frozenset({"name", "tags", "rules", "disk", "policy", "count", "size"})
    return Schema("t", names, frozenset(), frozenset(), maps=frozenset({"tags"}), **more)


CASES: dict[str, tuple[Schema, dict[str, Any], dict[str, Any], list[PropertyDifference]]] = {
    "nothing": (schema(), {"name": "a", "count": 1}, {"name": "a", "count": 1}, []),
    "the same in another form": (
        schema(),
        {"count": 1, "disk": {"gone": True}, "size": ""},
        {"count": "1", "disk": {"gone": "true"}},
        [],
    ),
    "a leaf that replaces": (
        schema(new=("disk.encrypted",)),
        {"disk": {"size": 1, "encrypted": False}},
        {"disk": {"size": 2, "encrypted": True}},
        [
            PropertyDifference("disk.size", "update", False),
            PropertyDifference("disk.encrypted", "update", True),
        ],
    ),
    "a tag too many, one with a colon": (
        schema(),
        {"tags": {"a": "1", "orch:stack": "x", "b.c": "2"}},
        {"tags": {"a": "1", "orch:stack": "y"}},
        [
            PropertyDifference("tags.orch:stack", "update", False),
            PropertyDifference('tags["b.c"]', "delete", False),
        ],
    ),
    "what the cloud filled in": (
        schema(computed=frozenset({"disk", "size"})),
        {"disk": {"id": "v", "size": 1}, "size": 5},
        {"disk": {"size": 1}},
        [],
    ),
    "an input taken away": (schema(), {"size": 5}, {}, [PropertyDifference("size", "delete", False)]),
    "a set in another order": (
        schema(sets=frozenset({"rules"})),
        {"rules": [{"port": 22, "to": ""}, {"port": 80}]},
        {"rules": [{"port": 80}, {"port": 22}]},
        [],
    ),
    "a rule that was added": (
        schema(sets=frozenset({"rules"})),
        {"rules": [{"port": 22}, {"port": 80}]},
        {"rules": [{"port": 80}]},
        [PropertyDifference("rules[1]", "delete", False)],
    ),
    "a policy written otherwise": (
        schema(json=frozenset({"policy"})),
        {"policy": '{"a": 1,  "b": 2}'},
        {"policy": '{"b":2,"a":1}'},
        [],
    ),
    "a URL and a part of it": (
        schema(links=frozenset({"disk.image"})),
        {"disk": {"image": "https://www.googleapis.com/compute/v1/projects/p/global/images/i"}},
        {"disk": {"image": "projects/p/global/images/i"}},
        [],
    ),
    "a key whose absence says something": (
        schema(sets=frozenset({"rules"}), strict=frozenset({"rules.ports"})),
        {"rules": [{"protocol": "tcp", "ports": ["22"]}]},
        {"rules": [{"protocol": "tcp"}]},
        [PropertyDifference("rules[0].ports", "delete", False)],
    ),
    "an unknown value": (
        schema(),
        {"name": "a"},
        {"name": UNKNOWN},
        [PropertyDifference("name", "update", False)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_differences(case: str) -> None:
    of, state, inputs, expected = CASES[case]
    assert differences(of, state, inputs) == expected


LINK = "https://www.googleapis.com/compute/v1/projects/p/global/instanceTemplates/"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (LINK + "t", "projects/p/global/instanceTemplates/t", True),
        (LINK + "t", "t", True),
        (LINK + "t?uniqueId=12", LINK + "12", True),
        (LINK + "t?uniqueId=12", LINK + "13", False),
        (LINK + "t", "projects/q/global/instanceTemplates/t", False),
        (LINK + "t", LINK + "xt", False),
        (None, "t", False),
    ],
)
def test_links_to_the_same_thing(one: str | None, other: str, alike: bool) -> None:
    assert refers(one, other) is refers(other, one) is alike
