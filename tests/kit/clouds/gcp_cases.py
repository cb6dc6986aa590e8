"""Plans of GCP fleets. A case may have `scripts`, the text of files that `init` names, and `network_pins`,
the decisions of the stack of shared networks. `facts.networks[].subnets` may be a number of subnets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from kit.clouds.plan_cases import CATALOG, PlanCase

from orch.components.cloud.planner import PlanContext
from orch.components.gcp.account.facts import Allowance, GcpFacts, Image, Network, Reservation, Subnet
from orch.components.gcp.account.lookups import Lookups, needed_lookups
from orch.components.gcp.candidates import CloudCandidate, candidates
from orch.components.gcp.plan import GcpPlan
from orch.components.registry.backends import backend
from orch.components.request import PriorState
from orch.spec.models.backends.gcp import GcpSettings


class Case(PlanCase):
    backend = "gcp"
    tags: ClassVar = {"team": "research"}
    readers: ClassVar = {"image": Image, **dict.fromkeys(("capacity", "network_quota"), Allowance)}

    @property
    def network(self) -> PriorState:
        return PriorState(pins=self.data.get("network_pins", {}))

    @property
    def reservation(self) -> Reservation | None:
        given = self.data.get("facts", {}).get("reservation")
        return Reservation(**{"project": "acme-ml", **given}) if given else None

    @property
    def context(self) -> PlanContext[Any]:
        return replace(super().context, network=self.network)

    def candidates(self) -> tuple[CloudCandidate, ...]:
        return candidates(
            self.fleet,
            self.settings,
            CATALOG,
            previous=self.previous,
            reservation=self.reservation,
            network=self.network,
        )

    def lookups(self, chosen: CloudCandidate) -> Lookups:
        return needed_lookups(self.fleet, self.settings, chosen, self.previous)

    def facts(self, chosen: CloudCandidate) -> GcpFacts:
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
        )
        rows = enumerate(self.data.get("facts", {}).get("networks", ()))
        networks = tuple(_network(row, place, chosen.region) for place, row in rows)
        facts = self.with_answers(facts)
        return replace(facts, reservation=self.reservation, networks=networks or facts.networks)

    def written(self, plan: GcpPlan) -> dict[str, Any]:
        answer = super().written(plan)
        answer["interfaces"] = [f"{i.kind} {i.stack} {i.subnet}" for i in plan.interfaces]
        answer["networks"]["vpcs"] = [_words(vpc) for vpc in answer["networks"]["vpcs"]]
        answer["networks"]["firewalls"] = [
            f"{f.name}: {', '.join(f.peers)} -> {f.target} {f.port or 'all'}" for f in plan.networks.firewalls
        ]
        if plan.shared is not None:
            answer["shared"]["networks"]["vpcs"] = [
                _words(vpc) for vpc in answer["shared"]["networks"]["vpcs"]
            ]
        return answer

    @staticmethod
    def log_in(settings: GcpSettings, folder: Path) -> None:
        """Log in. A key file that cannot be read ends it here, as the provider reads that file too."""
        backend("gcp").open_session(settings)


def _words(vpc: dict[str, Any]) -> str:
    subnets = " ".join(each["cidr"] or each["name"] for each in vpc["subnets"])
    return " ".join(
        filter(None, (vpc["role"], vpc["origin"], vpc["name"], f"MTU {vpc['mtu']}", vpc["profile"], subnets))
    )


def _network(data: dict[str, Any], place: int, region: str) -> Network:
    subnets = data.get("subnets", 1)
    if isinstance(subnets, int):
        subnets = [
            {"name": f"{data['name']}-{i}", "cidr": f"192.168.{16 * place + i}.0/24"} for i in range(subnets)
        ]
    return Network(
        **{"mtu": 8896, **data, "subnets": tuple(Subnet(region=region, **each) for each in subnets)}
    )
