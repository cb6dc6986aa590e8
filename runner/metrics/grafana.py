"""The form of a Grafana board: Grafana's dashboard kind, schema version 39."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orch.runner.metrics.families import FAMILIES

Model = dict[str, Any]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_VARIABLES = {
    "fleet": "label_values(orch_fleet_nodes, fleet)",
    "node": "label_values(orch_node_up, node)",
    "run": "label_values(orch_gpu_utilization_ratio, run)",
}
"""Variables of boards, each with the query for its values. `fleet` narrows the queries of the others."""
_LABELS = {family.sample: family.labels for family in FAMILIES.values()}
_SELECTOR = re.compile(r"\b(" + "|".join(sorted(_LABELS, key=len, reverse=True)) + r")\b(?:\{([^}]*)\})?")


def narrowed(expression: str, variables: Sequence[str]) -> str:
    """Return a PromQL expression that counts only what the variables select, where a metric has such a label.

    `sum(orch_runs{status="running"})` -> `sum(orch_runs{fleet=~"$fleet",status="running"})`. A range `[]` is
    the interval that Grafana finds right for a rate.
    """

    def select(match: re.Match[str]) -> str:
        chosen = [f'{name}=~"${name}"' for name in variables if name in _LABELS[match[1]]]
        matchers = ",".join([*chosen, *filter(None, [match[2]])])
        return f"{match[1]}{{{matchers}}}" if matchers else match[1]

    return _SELECTOR.sub(select, expression).replace("[]", "[$__rate_interval]")


@dataclass(frozen=True)
class Row:
    """A line with a title, above the panels that follow."""

    title: str

    size = (24, 1)

    def model(self, variables: Sequence[str]) -> Model:
        return {"type": "row", "title": self.title, "collapsed": False, "panels": []}


@dataclass(frozen=True)
class Stat:
    """One number. `red`: from this value on it is red."""

    title: str
    expression: str
    unit: str = "short"
    red: float | None = None

    size = (4, 4)

    def model(self, variables: Sequence[str]) -> Model:
        steps = [] if self.red is None else [{"color": "red", "value": self.red}]
        return {
            "type": "stat",
            "title": self.title,
            "datasource": _SOURCE,
            "targets": [_instant(narrowed(self.expression, variables))],
            "fieldConfig": _fields(
                {
                    "unit": self.unit,
                    "color": {"mode": "thresholds"},
                    "thresholds": _thresholds(*steps),
                    "mappings": [],
                }
                | ({"decimals": 2} if self.unit == "currencyUSD" else {})
            ),
            "options": {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value",
                "graphMode": "none",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "auto",
            },
        }


@dataclass(frozen=True)
class Graph:
    """Lines over time. `lines`: expressions with their legends. `most`: where the axis ends."""

    title: str
    lines: Mapping[str, str]
    unit: str = "short"
    most: float | None = None
    stacked: bool = False
    description: str = ""

    size = (12, 8)

    def model(self, variables: Sequence[str]) -> Model:
        targets = [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": narrowed(expression, variables),
                "legendFormat": legend,
                "range": True,
                "instant": False,
            }
            for number, (expression, legend) in enumerate(self.lines.items())
        ]
        return {
            "type": "timeseries",
            "title": self.title,
            "description": self.description,
            "datasource": _SOURCE,
            "targets": targets,
            "fieldConfig": _fields(
                {
                    "unit": self.unit,
                    "min": 0,
                    "color": {"mode": "palette-classic"},
                    "mappings": [],
                    "thresholds": _thresholds(),
                    "custom": {
                        "drawStyle": "line",
                        "lineWidth": 1,
                        "fillOpacity": 20 if self.stacked else 5,
                        "showPoints": "never",
                        "spanNulls": False,
                        "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                    },
                }
                | ({} if self.most is None else {"max": self.most})
            ),
            "options": {
                "legend": {
                    "displayMode": "table",
                    "placement": "bottom",
                    "showLegend": True,
                    "calcs": ["mean", "max"],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            },
        }


@dataclass(frozen=True)
class Table:
    """The labels of what there is now. `hidden`: columns beside those that never tell anything."""

    title: str
    expression: str
    hidden: tuple[str, ...] = ()
    unit: str = "short"
    height: int = 8

    @property
    def size(self) -> tuple[int, int]:
        return 24, self.height

    def model(self, variables: Sequence[str]) -> Model:
        hidden = dict.fromkeys(("Time", "__name__", "job", "instance", *self.hidden), True)
        return {
            "type": "table",
            "title": self.title,
            "datasource": _SOURCE,
            "targets": [_instant(narrowed(self.expression, variables), format="table")],
            "fieldConfig": _fields(
                {
                    "unit": self.unit,
                    "mappings": [],
                    "custom": {"align": "auto", "cellOptions": {"type": "auto"}},
                    "thresholds": _thresholds(),
                }
            ),
            "transformations": [
                {
                    "id": "organize",
                    "options": {"excludeByName": hidden, "indexByName": {}, "renameByName": {}},
                }
            ],
            "options": {
                "showHeader": True,
                "cellHeight": "sm",
                "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
            },
        }


Panel = Row | Stat | Graph | Table


def _instant(expression: str, **more: str) -> Model:
    target = {"refId": "A", "datasource": _SOURCE, "expr": expression, **more}
    return {**target, "instant": True, "range": False, "legendFormat": "__auto"}


def _fields(defaults: Model) -> Model:
    return {"defaults": defaults, "overrides": []}


def _thresholds(*steps: Model) -> Model:
    return {"mode": "absolute", "steps": [{"color": "green", "value": None}, *steps]}


@dataclass(frozen=True)
class Board:
    """A board: panels from left to right, then below. `variables`: by which a viewer narrows it."""

    name: str
    title: str
    description: str
    variables: tuple[str, ...]
    panels: tuple[Panel, ...]

    def model(self) -> Model:
        return {
            "uid": f"orch-{self.name}",
            "title": f"orch: {self.title}",
            "description": self.description,
            "tags": ["orch"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "time": {"from": "now-6h", "to": "now"},
            "refresh": "30s",
            "timezone": "browser",
            "fiscalYearStartMonth": 0,
            "liveNow": False,
            "weekStart": "",
            "annotations": {"list": []},
            "links": [
                {
                    "title": "orch",
                    "type": "dashboards",
                    "tags": ["orch"],
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                    "tooltip": "",
                    "url": "",
                }
            ],
            "templating": {"list": [_DATA_SOURCE, *self._queries()]},
            "panels": list(self._placed()),
        }

    def _queries(self) -> Iterator[Model]:
        for number, name in enumerate(self.variables):
            yield {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": _SOURCE,
                "query": {
                    "qryType": 1,
                    "query": narrowed(_VARIABLES[name], ("fleet",)[:number]),
                    "refId": f"PrometheusVariableQueryEditor-{name}",
                },
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
                "hide": 0,
                "options": [],
                "regex": "",
                "skipUrlSync": False,
            }

    def _placed(self) -> Iterator[Model]:
        x = y = height = 0
        for number, panel in enumerate(self.panels, start=1):
            wide, high = panel.size
            if x + wide > 24:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": wide, "h": high}
            yield {**panel.model(self.variables), "id": number, "gridPos": place}
            x, height = x + wide, max(height, high)


_DATA_SOURCE: Model = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
}
