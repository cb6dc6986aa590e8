"""What the properties of Lambda's resources say of a fleet, what a plan's nodes are in few words, and why.

Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orch.components.cloud.machines.ssh_access import AccessMethod, ssh_reasons
from orch.components.explain import ChangeRow, Explained
from orch.components.lambda_.account.facts import LambdaFacts
from orch.components.lambda_.candidates import LambdaCandidate
from orch.components.lambda_.plan import NO_FIREWALL, LambdaPlan

PACKAGE = "orch-lambda"
INSTANCE = f"{PACKAGE}:index:Instance"
RULES = f"{PACKAGE}:index:FirewallRules"
GANG = f"{PACKAGE}:index:Gang"

LAUNCHES_A_MINUTE = 5
"""Source: Lambda Cloud API 1.10, one launch every 12 seconds."""

EXPLAINED = Explained(
    traits={
        "region": "region",
        "instance_type": "type",
        "image": "machine image",
        "mounts": "file systems",
        "placement": "placement",
    },
    new_nodes=frozenset({"instance_type", "image", "mounts", "placement"}),
    rows=(
        ChangeRow(INSTANCE, r"layout", None),
        ChangeRow(INSTANCE, r"user_data|waits", None),
        ChangeRow(INSTANCE, r"spec\.instance_type_name", "instance_type"),
        ChangeRow(INSTANCE, r"spec\.region_name", "region"),
        ChangeRow(INSTANCE, r"spec\.image.*", "image"),
        ChangeRow(INSTANCE, r"spec\.file_system.*", "mounts"),
        ChangeRow(INSTANCE, r"spec\.ssh_key_names.*", None),
        ChangeRow(GANG, r"instances(\..*|\[.*\])?", None),
    ),
)


def traits(plan: LambdaPlan) -> dict[str, str]:
    """What the nodes of a plan are."""
    own = [f"{path}: {each}" for path, each in sorted(plan.attached.items())]
    made = [f"{each.path}: new" for each in plan.file_systems]
    return {
        "region": plan.region,
        "instance_type": plan.instance_type,
        "image": plan.image,
        "mounts": ", ".join([*own, *made]) or "none",
        "placement": plan.placement,
    }


def capacity_reasons(
    candidate: LambdaCandidate, facts: LambdaFacts, new: int, *, whole: bool
) -> Iterator[str]:
    if not candidate.kept and facts.room is not None:
        yield (
            f"capacity: Lambda tells of some in {candidate.region} now, not of how much"
            if facts.room
            else f"capacity: Lambda tells of none in {candidate.region} now, nor anywhere else"
        )
    if new > 1:
        seconds = (new - 1) * 60 // LAUNCHES_A_MINUTE
        yield (
            f"launches: one instance each, {LAUNCHES_A_MINUTE} a minute at most: "
            f"{new} take {seconds} s and the time to boot"
        )
    if whole and new:
        yield "where one launch finds no capacity all are taken back"


def network_reasons(
    region: str, access: AccessMethod, ssh_from: Sequence[str], facts: LambdaFacts, *, jumps: int
) -> Iterator[str]:
    yield "network: each instance has a public address, and a private one in the network of its region"
    if region in NO_FIREWALL:
        yield f"SSH: straight; no firewall rules hold in {region}"
        return
    if access.kind == "direct" and not ssh_from:
        yield f"SSH: straight, as the account's rules say, which let in {', '.join(facts.ssh_from)}"
        return
    yield from ssh_reasons(access, None, jumps=jumps)
    if ssh_from:
        yield "firewall: these are added to the rules of the account, which hold for all of its instances"
