"""Zones where no new node of a fleet goes, since it was moved out of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orch.components.base import Candidate
from orch.components.request import PlanRequest
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors


def zone_of(candidate: Candidate) -> str:
    """The zone of a candidate; "" for one of a backend without zones, and where it is not known yet."""
    return str(getattr(candidate, "zone", "") or "")


def outside_evacuated(request: PlanRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates without those in zones that the fleet was moved out of, but for the one where it is.

    Raises PlanErrors where these are all.
    """
    left = [each for each in candidates if each.kept or zone_of(each) not in request.evacuated]
    if candidates and not left:
        raise PlanErrors([no_other_zone(request)])
    return left


def evacuated_note(request: PlanRequest) -> tuple[Finding, ...]:
    """What a plan says of such zones: nothing where there is none."""
    fleet, zones = request.fleet.name, sorted(request.evacuated)
    if not zones:
        return ()
    return (
        Finding(
            "ORCH425",
            "name",
            f"no new node goes to {', '.join(zones)}: the fleet was moved out of there",
            hint=f"`orch fleet evacuate {fleet} --zone {zones[0]} --undo` takes the zone back",
            severity=Severity.NOTE,
        ),
    )


def no_other_zone(request: PlanRequest) -> Finding:
    """That a fleet has no zone but those that it was moved out of, or is to be."""
    fleet, zones = request.fleet, ", ".join(sorted(request.evacuated))
    path = "availability_zones" if fleet.availability_zones else "regions"
    return Finding(
        "ORCH426",
        path,
        f"the fleet '{fleet.name}' may go to no zone but {zones}, where no new node goes",
        hint="write other zones or regions too; what was moved out of a zone goes back to it after "
        f"`orch fleet evacuate {fleet.name} --zone ZONE --undo`",
    )


def not_split(request: PlanRequest, zone: str) -> Finding:
    """That nodes of a cluster are missing in a zone where none may be made."""
    return Finding(
        "ORCH427",
        "placement",
        f"the cluster '{request.fleet.name}' is in {zone}, where no new node goes, and lacks nodes",
        detail="a cluster is in one zone",
        hint=f"`orch fleet evacuate {request.fleet.name} --zone {zone}` moves all of it, and with `--undo` "
        "lets nodes be made there again",
    )
