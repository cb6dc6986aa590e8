"""Boards and alert rules ask for metrics and labels that there are, and boards are what Grafana loads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from orch.runner.metrics.boards import board_files
from orch.runner.metrics.families import FAMILIES, HEALTH_STATUSES, NODE_STATUSES

FILES = board_files()
BOARDS = [name for name in FILES if name.endswith(".json")]
LABELS = {family.sample: {*family.labels, "job", "instance"} for family in FAMILIES.values()}
# Functions, operators and modifiers of PromQL that are used here.
WORDS = {
    *("sum", "avg", "min", "max", "count", "rate", "increase", "max_over_time", "time", "vector"),
    *("by", "on", "and", "or", "unless"),
}
_STRING = re.compile(r'"[^"]*"')
_GROUPS = re.compile(r"\b(?:by|on) \(([a-z_, ]+)\)")
_SELECTOR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\{([^}]*)\}")
_RANGE = re.compile(r"\[[^\]]+\]")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_]*")


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(FILES["prometheus/orch-alerts.yml"])["groups"]:
        yield from group["rules"]


def board(name: str) -> dict[str, Any]:
    return json.loads(FILES[name])


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for name in BOARDS:
        for panel in board(name)["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))
        for variable in board(name)["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+), ([a-z_]+)\)", variable["query"]["query"])
                assert asked
                yield f"sum by ({asked[2]}) ({asked[1]})"


def metrics_of(expression: str) -> set[str]:
    bare = _SELECTOR.sub(lambda each: each[1], _RANGE.sub("", _GROUPS.sub("", expression)))
    return {word for word in _NAME.findall(bare) if word not in WORDS and not re.fullmatch("e[0-9]+", word)}


def labels_of(expression: str) -> set[tuple[str, str]]:
    """Each metric with the labels by which it is chosen."""
    return {
        (name, label)
        for name, chosen in _SELECTOR.findall(expression)
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)", _STRING.sub("", chosen))
    }


def test_the_parser_sees_names_and_labels() -> None:
    text = 'sum by (fleet) (rate(up{job="a{b", le!~"x"}[5m])) / 1e6 * on (x) nosuch == 0 or vector(0)'
    assert metrics_of(text.replace("a{b", "ab")) == {"up", "nosuch"}
    assert labels_of(text) == {("up", "job"), ("up", "le")}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_asks_for_what_the_collector_describes(expression: str) -> None:
    names = metrics_of(expression)
    assert names
    assert names <= set(LABELS)
    for name, label in labels_of(expression):
        assert label in LABELS[name], (name, label)
    grouped = {word.strip() for group in _GROUPS.findall(expression) for word in group.split(",")}
    for label in grouped:
        assert all(label in LABELS[name] for name in names), (label, names)


def test_statuses_that_are_asked_for_exist() -> None:
    for expression in expressions():
        for name, chosen in re.findall(
            r'(orch_node_(?:status|health))\{[^}]*status[=!~]+"([^"]+)"', expression
        ):
            known = NODE_STATUSES if name == "orch_node_status" else HEALTH_STATUSES
            assert set(chosen.split("|")) <= set(known)


def test_what_an_alert_says_of_its_labels_is_there() -> None:
    for rule in rules():
        names = metrics_of(rule["expr"])
        words = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.([A-Za-z_]+)", words):
            assert any(label in LABELS[name] for name in names), (rule["alert"], label)
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_alerts_that_people_need_are_there() -> None:
    assert {rule["alert"].removeprefix("Orch") for rule in rules()} >= {
        *("NodeUnreachable", "NodeFailed", "NodeUnhealthy", "FabricPortDown"),
        *("GpuXid", "GpuUncorrectableEcc", "GpuHot", "GpuIdleInRun"),
        *("RunWaitsLong", "RunFailsAgainAndAgain", "BudgetNearlySpent"),
    }


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_what_grafana_needs_of_it(name: str) -> None:
    """The parts of Grafana's dashboard kind, schema version 39, that a file has to have."""
    model = board(name)
    assert model["schemaVersion"] == 39
    assert re.fullmatch(r"[a-z-]{1,40}", model["uid"])
    assert model["title"].startswith("orch: ")
    variables = {each["name"] for each in model["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(model["panels"])))
    assert used <= variables, "a variable that is not one of the board"
    numbers = [panel["id"] for panel in model["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        place = panel["gridPos"]
        assert 0 < place["w"] <= 24 - place["x"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, "panels that lie on each other"
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            references = [target["refId"] for target in panel["targets"]]
            assert references
            assert len(set(references)) == len(references)


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_model_knows_all_of_a_board(name: str) -> None:
    register_default_plugins()
    read = Dashboard.from_json(board(name))
    assert list(unknown(board(name), json.loads(JSONEncoder().encode(read)))) == []
    assert {type(panel).__name__ for panel in read.panels or ()} <= {"Panel", "RowPanel"}


def unknown(ours: Any, read: Any, path: str = "") -> Iterator[str]:
    """Where a model that was read lacks something, or has another value; it adds defaults."""
    if isinstance(ours, dict) and isinstance(read, dict):
        for key, value in ours.items():
            yield from unknown(value, read.get(key), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for at, (mine, theirs) in enumerate(zip(ours, read, strict=True)):
            yield from unknown(mine, theirs, f"{path}/{at}")
    elif ours != read:
        yield path


def test_a_field_that_grafana_does_not_know_is_seen() -> None:
    register_default_plugins()
    wrong = {"title": "x", "panels": [{"type": "stat", "titel": "y"}]}
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(wrong)))
    assert list(unknown(wrong, read)) == ["/panels/0/titel"]


def test_boards_have_names_of_their_own() -> None:
    assert len({board(name)["uid"] for name in BOARDS}) == len(BOARDS) == 4
