"""Plans of fleets as data: a case is a file `golden/NAME.yml` of a backend's tests, its outcome a record of
`golden/plans.json` (see `kit/goldens.py`).

A case has `fleet`, and optionally `settings`, `facts` (the answers of the account), `pins`, and what the
module of its backend describes.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/test_plan_cases.py` rewrites the records; review their diff.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from kit import TESTS
from kit.goldens import Goldens
from pydantic import BaseModel

from orch.catalog.load import catalog, folder_of
from orch.components.cloud.planner import PlanContext
from orch.components.registry.backends import backend
from orch.components.request import PriorState
from orch.spec.errors import OrchError
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import MODELS, provisioned
from orch.spec.models.backends.base import BackendSettings

CATALOG = catalog(Path("/nonexistent"))
HOME = ["198.51.100.0/24"]
DEFAULTS = [(each.name, each.default) for each in fields(Finding)]
C = TypeVar("C", bound="PlanCase")


@dataclass
class PlanCase:
    """One file, or models. A subclass is what differs on its backend: the account, the record of a plan.

    `usual_fleet`, `usual`: properties and settings that each case has. `tags`: those of the project.
    `readers`: the classes of facts, by name. `roomy`: an account that has room for `wish`, properties of a
    fleet.
    """

    name: str
    data: dict[str, Any]
    model: Fleet | None = None
    model_settings: BackendSettings | None = None

    backend: ClassVar[str]
    usual_fleet: ClassVar[Mapping[str, Any]] = {}
    usual: ClassVar[Mapping[str, Any]] = {}
    tags: ClassVar[Mapping[str, str]] = {}
    created: ClassVar[int] = 0
    readers: ClassVar[Mapping[str, type[Any]]] = {}
    roomy: ClassVar[Mapping[str, Any]] = {}
    wish: ClassVar[Mapping[str, Any]] = {
        "nodes": "2",
        "placement": "cluster",
        "resources": {"gpu": "H100:8"},
    }

    @classmethod
    def folder(cls) -> Path:
        return TESTS / "components" / folder_of(cls.backend) / "golden"

    @classmethod
    def names(cls) -> list[str]:
        return sorted(path.stem for path in cls.folder().glob("*.yml"))

    @classmethod
    def planned(cls) -> list[str]:
        """Return the names of the cases that have a plan."""
        return [name for name in cls.names() if not name.startswith("bad-")]

    @classmethod
    def of(cls: type[C], name: str) -> C:
        return cls(name, yaml.load((cls.folder() / f"{name}.yml").read_text(), yaml.CSafeLoader))

    @classmethod
    @cache
    def goldens(cls) -> Goldens:
        return Goldens(
            cls.folder() / "plans.json", lambda: {name: cls.of(name).outcome() for name in cls.names()}
        )

    @classmethod
    def given(cls: type[C], fleet: Fleet, settings: BackendSettings) -> C:
        """Return the case of models, in an account that has room for it."""
        return cls("given", dict(cls.roomy), fleet, settings)

    @property
    def fleet(self) -> Fleet:
        if self.model is not None:
            return self.model
        given = {"type": "fleet", "backends": [self.backend], **self.usual_fleet, **self.data["fleet"]}
        return Fleet.model_validate(_texts(given))

    @property
    def settings(self) -> Any:
        if self.model_settings is not None:
            return self.model_settings
        given = {"type": self.backend, **self.usual, **self.data.get("settings", {})}
        return backend(self.backend).settings.model_validate(_texts(given))

    @property
    def previous(self) -> PriorState:
        return PriorState(pins=self.data.get("pins", {}))

    @property
    def context(self) -> PlanContext[Any]:
        scripts = self.data.get("scripts", {})
        return PlanContext(self.settings, CATALOG, "abc123", self.tags, scripts, created=self.created)

    def candidates(self) -> Sequence[Any]:
        """Return the places for the fleet, in the order to try. Raises PlanErrors."""
        raise NotImplementedError

    def lookups(self, chosen: Any) -> Any:
        """Return what the account is asked for, if the backend says that beforehand."""

    def facts(self, chosen: Any) -> Any:
        """Return the facts of an account without limits, except for what the case says."""
        raise NotImplementedError

    def plan(self, chosen: Any = None) -> Any:
        """Return the plan at a candidate, by default at the first one. Raises PlanErrors."""
        chosen = chosen or self.candidates()[0]
        planner = backend(self.backend).planner
        return planner(self.fleet, chosen, self.facts(chosen), self.previous, self.context).plan()

    def with_answers(self, facts: Any) -> Any:
        """Return facts with the answers of the case instead of the usual ones."""
        given = self.data.get("facts", {})
        return replace(facts, **{key: _read(self.readers.get(key), value) for key, value in given.items()})

    def written(self, plan: Any) -> dict[str, Any]:
        """Return the plan as it is recorded."""
        answer = asdict(plan)
        # Scripts have tests of their own; here they would bury the rest.
        scripts = answer.keys() & {"cloud_init", "bastion_init"}
        return {**answer, **{name: f"{len(answer[name].splitlines())} lines" for name in scripts}}

    def outcome(self) -> dict[str, Any]:
        """Return the plan or the findings as they are recorded."""
        try:
            answer = self.written(self.plan())
        except PlanErrors as error:
            answer = {
                "exit_code": int(error.exit_code),
                "findings": [_written(each) for each in error.findings],
            }
        return json.loads(json.dumps(answer, default=_json))

    @staticmethod
    def log_in(settings: Any, folder: Path) -> None:
        """Log in as far as that asks nobody. Keys of tests may be refused."""
        with suppress(OrchError):
            backend(settings.type).open_session(settings)


def clouds() -> tuple[str, ...]:
    """Return the backends of this package that have a place to choose."""
    return tuple(name for name in provisioned() if name in MODELS and name not in ("local", "ssh"))


def case_type(name: str) -> type[PlanCase]:
    """Return the class of a backend's cases. Raises ModuleNotFoundError if it has none."""
    return import_module(f"kit.clouds.{name}_cases").Case


def _written(finding: Finding) -> dict[str, Any]:
    """Return its fields without those that have their default."""
    return {key: value for key, value in asdict(finding).items() if (key, value) not in DEFAULTS}


def _json(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


def _read(kind: type[Any] | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read(kind, item) for item in value)
    return kind(**value) if kind and isinstance(value, dict) else value


def _texts(value: Any) -> Any:
    """Return numbers as the texts they were written as: models read texts."""
    if isinstance(value, dict):
        return {key: _texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
