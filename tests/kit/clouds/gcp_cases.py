"""Plans of GCP fleets as data: a case is a file `golden/NAME.yml`, what comes of it `golden/NAME.json`.

A case holds `fleet`, and where it matters `settings`, `facts` (what the project answers), `pins`, `scripts`.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/gcp` writes the answers anew; read the difference.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from kit import TESTS

from orch.catalog.load import catalog
from orch.components.cloud.planner import PlanContext
from orch.components.gcp.account.facts import Allowance, GcpFacts, Image, Network, Reservation, Subnet
from orch.components.gcp.candidates import CloudCandidate, candidates
from orch.components.gcp.plan import GcpPlan
from orch.components.gcp.planner import GcpPlanner
from orch.components.request import PriorState
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.gcp import GcpSettings

GOLDEN = TESTS / "components" / "gcp" / "golden"
CATALOG = catalog(Path("/nonexistent"))


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
        return Fleet.model_validate(_texts({"type": "fleet", "backends": ["gcp"], **self.data["fleet"]}))

    @property
    def settings(self) -> GcpSettings:
        return GcpSettings.model_validate(_texts({"type": "gcp", **self.data.get("settings", {})}))

    @property
    def previous(self) -> PriorState:
        return PriorState(pins=self.data.get("pins", {}))

    @property
    def network(self) -> PriorState:
        """What the stack of shared networks has decided."""
        return PriorState(pins=self.data.get("network_pins", {}))

    @property
    def reservation(self) -> Reservation | None:
        given = self.data.get("facts", {}).get("reservation")
        return Reservation(**{"project": "acme-ml", **given}) if given else None

    @property
    def context(self) -> PlanContext[GcpSettings]:
        scripts = self.data.get("scripts", {})
        return PlanContext(
            self.settings, CATALOG, "abc123", {"team": "research"}, scripts, network=self.network
        )

    def candidates(self) -> tuple[CloudCandidate, ...]:
        return candidates(
            self.fleet,
            self.settings,
            CATALOG,
            previous=self.previous,
            reservation=self.reservation,
            network=self.network,
        )

    def plan(self, chosen: CloudCandidate | None = None) -> GcpPlan:
        """At a candidate, by default the first one."""
        chosen = chosen or self.candidates()[0]
        return GcpPlanner(self.fleet, chosen, self.facts(chosen), self.previous, self.context).plan()

    def facts(self, chosen: CloudCandidate) -> GcpFacts:
        """A project without limits, but for what the case says."""
        offers = CATALOG.lists["gcp"].offers
        cos = "a3-highgpu-8g" in chosen.type.name or "a3-edge" in chosen.type.name
        arch = "arm64" if chosen.type.arch == "arm" else "amd64"
        image = "cos-105-17412-535-78" if cos else f"ubuntu-accelerator-{arch}-v20261101"
        owner = "cos-cloud" if cos else "ubuntu-os-accelerator-images"
        facts = GcpFacts(
            project="acme-ml",
            region=chosen.region,
            zones=tuple(sorted({o.zone for o in offers if o.region == chosen.region and o.zone})),
            offered=True,
            profile=True,
            image=Image(f"projects/{owner}/global/images/{image}", image, 20),
            bastion_image=Image("projects/ubuntu-os-cloud/global/images/ubuntu-2204-v20261101", "ubuntu", 10),
            reservation=self.reservation,
        )
        told = dict(self.data.get("facts", {}))
        told.pop("reservation", None)
        made: dict[str, Any] = {
            "networks": lambda value: tuple(
                _network(each, place, chosen.region) for place, each in enumerate(value)
            ),
            "image": lambda value: Image(**value) if value else None,
            "missing": tuple,
            "zones": tuple,
            **dict.fromkeys(("capacity", "network_quota"), lambda value: Allowance(**value)),
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
        answer["interfaces"] = [f"{i.kind} {i.stack} {i.subnet}" for i in made.interfaces]
        answer["networks"]["vpcs"] = [_words(vpc) for vpc in answer["networks"]["vpcs"]]
        answer["networks"]["firewalls"] = [
            f"{f.name}: {', '.join(f.peers)} -> {f.target} {f.port or 'all'}" for f in made.networks.firewalls
        ]
        if made.shared is not None:
            answer["shared"]["networks"]["vpcs"] = [
                _words(vpc) for vpc in answer["shared"]["networks"]["vpcs"]
            ]
        return answer


def _words(vpc: dict[str, Any]) -> str:
    subnets = " ".join(each["cidr"] or each["name"] for each in vpc["subnets"])
    return " ".join(
        filter(None, (vpc["role"], vpc["origin"], vpc["name"], f"MTU {vpc['mtu']}", vpc["profile"], subnets))
    )


def _network(data: dict[str, Any], place: int, region: str) -> Network:
    """`subnets` may be a number of them."""
    subnets = data.get("subnets", 1)
    if isinstance(subnets, int):
        subnets = [
            {"name": f"{data['name']}-{i}", "cidr": f"192.168.{16 * place + i}.0/24"} for i in range(subnets)
        ]
    return Network(
        **{"mtu": 8896, **data, "subnets": tuple(Subnet(region=region, **each) for each in subnets)}
    )


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
