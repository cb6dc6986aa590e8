"""Plans of AWS fleets as data: a case is a file `golden/NAME.yml`, what comes of it `golden/NAME.json`.

A case holds `fleet`, and where it matters `settings`, `facts` (what the account answers), `pins`, `scripts`.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/aws` writes the answers anew; read the difference.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from kit import TESTS

from orch.catalog.load import catalog
from orch.components.aws.account.facts import (
    Allowance,
    AwsFacts,
    Image,
    Reservation,
    SecurityGroup,
    Subnet,
    Vpc,
    Zone,
)
from orch.components.aws.candidates import CloudCandidate, candidates
from orch.components.aws.plan import AwsPlan
from orch.components.aws.planner import AwsPlanner
from orch.components.cloud.planner import PlanContext
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.aws import AwsSettings

GOLDEN = TESTS / "components" / "aws" / "golden"
CATALOG = catalog(Path("/nonexistent"))
LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Case:
    """One file."""

    name: str
    data: dict[str, Any]

    @classmethod
    def of(cls, name: str) -> Case:
        return cls(name, yaml.load((GOLDEN / f"{name}.yml").read_text(), yaml.CSafeLoader))

    @property
    def fleet(self) -> Fleet:
        return Fleet.model_validate(_texts({"type": "fleet", "backends": ["aws"], **self.data["fleet"]}))

    @property
    def settings(self) -> AwsSettings:
        return AwsSettings.model_validate(_texts({"type": "aws", **self.data.get("settings", {})}))

    @property
    def previous(self) -> PriorState:
        return PriorState(pins=self.data.get("pins", {}))

    @property
    def reservation(self) -> Reservation | None:
        given = self.data.get("facts", {}).get("reservation")
        return Reservation(**given) if given else None

    @property
    def context(self) -> PlanContext[AwsSettings]:
        return PlanContext(
            self.settings, CATALOG, "abc123", {"team": "research"}, self.data.get("scripts", {})
        )

    def candidates(self) -> tuple[CloudCandidate, ...]:
        return candidates(
            self.fleet, self.settings, CATALOG, previous=self.previous, reservation=self.reservation
        )

    def plan(self, chosen: CloudCandidate | None = None) -> AwsPlan:
        """At a candidate, by default the first one."""
        chosen = chosen or self.candidates()[0]
        return AwsPlanner(self.fleet, chosen, self.facts(chosen), self.previous, self.context).plan()

    def facts(self, chosen: CloudCandidate) -> AwsFacts:
        """An account without limits, but for what the case says."""
        told = dict(self.data.get("facts", {}))
        ids = sorted(
            {
                offer.zone
                for offer in CATALOG.lists["aws"].offers
                if offer.region == chosen.region and offer.zone and not offer.local_zone
            }
        )
        facts = AwsFacts(
            account="123456789012",
            region=chosen.region,
            zones=tuple(
                Zone(zone, f"{chosen.region}{letter}") for zone, letter in zip(ids, LETTERS, strict=False)
            ),
            image=Image("ami-0a1b2c3d4e5f60718", "an image of nodes", "/dev/sda1", 65),
            bastion_image=Image("ami-0f9e8d7c6b5a43210", "an image of bastions", "/dev/sda1", 8),
            reservation=self.reservation,
        )
        told.pop("reservation", None)
        made: dict[str, Any] = {
            "vpc": lambda value: Vpc(**value),
            "subnets": lambda value: tuple(Subnet(**each) for each in value),
            "groups": lambda value: tuple(SecurityGroup(**each) for each in value),
            "image": lambda value: Image(**value) if value else None,
            "zones": lambda value: tuple(Zone(**each) for each in value),
            "missing": tuple,
            "cards": tuple,
            **dict.fromkeys(("vcpus", "addresses", "interfaces"), lambda value: Allowance(**value)),
        }
        return replace(
            facts, **{key: made.get(key, lambda value: value)(value) for key, value in told.items()}
        )

    def outcome(self) -> dict[str, Any]:
        """The plan, or what is wrong, as it is written down."""
        try:
            made = self.plan()
        except PlanErrors as error:
            return {"exit_code": int(error.exit_code), "findings": [asdict(each) for each in error.findings]}
        answer = json.loads(json.dumps(asdict(made), default=_plain))
        # Scripts have a test of their own; here their length would bury the rest.
        answer["cloud_init"] = f"{len(made.cloud_init.splitlines())} lines"
        answer["bastion_init"] = f"{len(made.bastion_init.splitlines())} lines"
        if not made.file_systems:
            del answer["file_systems"]
        answer["interfaces"] = [f"card {i.card} device {i.device} {i.kind}" for i in made.interfaces]
        return answer


def cases() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.yml"))


def _plain(value: Any) -> Any:
    return value.model_dump()


def _texts(value: Any) -> Any:
    """Numbers as the text they were written as: the models read text."""
    if isinstance(value, dict):
        return {key: _texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
