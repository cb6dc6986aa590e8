"""What a plan says about its decisions, in its own words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orch.catalog.aws.machines import Nics
from orch.components.aws import network as networks
from orch.components.aws.account.facts import AwsFacts
from orch.components.aws.candidates import Candidate
from orch.components.aws.plan import Bastion
from orch.components.cloud.cloudinit import scratch
from orch.components.request import PriorState
from orch.spec.models import Fleet


def words(candidate: Candidate, *, block: bool) -> str:
    place = f"{candidate.type.name} in {candidate.region}, zone {candidate.zone}"
    return f"{place}, paid for with the Capacity Block" if block else candidate.words


def capacity_reasons(made: int | None, facts: AwsFacts, candidate: Candidate) -> Iterator[str]:
    given = facts.reservation
    if made is not None:
        yield (
            f"capacity: a reservation of its own for all {made} nodes is made first; "
            "EC2 grants it whole or refuses it at once"
        )
    elif given is not None:
        what = "Capacity Block" if given.kind == "block" else "Capacity Reservation"
        ends = f", which ends at {given.end}" if given.end else ""
        yield f"capacity: from the {what} {given.id} of {given.total}{ends}; orch buys none"
    elif candidate.spot:
        yield "capacity: spot, which AWS may take back with two minutes' notice"


def image_reasons(facts: AwsFacts, previous: PriorState) -> Iterator[str]:
    if facts.image is None:
        return
    pinned = previous.pins.get("image") == facts.image.id
    how = "pinned; `up --upgrade` looks for a newer one" if pinned else "pinned from now on"
    yield f"image: {facts.image.id} ({facts.image.name}), {how}"


def scratch_reasons(fleet: Fleet, each: Nics) -> Iterator[str]:
    made = scratch(fleet, each.disks)
    if made is not None and each.disks:
        if not each.counted:
            yield f"scratch: local NVMe of {each.disk_gb} GB in all, {made.fs} at {made.path}"
            return
        disks = (
            f"{each.disks} local NVMe disks of {each.disk_gb} GB"
            if each.disks > 1
            else (f"the local NVMe disk of {each.disk_gb} GB")
        )
        joined = f" joined as RAID 0 ({each.disks * each.disk_gb} GB)" if each.disks > 1 else ""
        yield f"scratch: {disks}{joined}, {made.fs} at {made.path}"


def rank_reasons(fleet: Fleet, each: Nics) -> Iterator[str]:
    if fleet.topology == "rank-ordered" and each.levels:
        yield f"ranks: neighbours in the network first, by the {each.levels} levels that AWS tells of"
    elif fleet.topology == "rank-ordered":
        yield f"ranks: by node number; AWS tells nothing of where a {each.type} is in the network"


def unpriced(
    reached: networks.Reach, price: float | None, bastion: Bastion | None, *, block: bool
) -> Iterator[str]:
    """What costs money and has no price in the catalogue."""
    if block:
        yield "nodes: paid for with the Capacity Block"
    elif price is None:
        yield "nodes"
    if bastion is not None and bastion.price is None:
        yield "bastion"
    nat = not isinstance(reached.network, networks.ExistingNetwork) and not reached.network.public
    if nat:
        yield "NAT gateway and its traffic"
    if nat or reached.addresses.kind != "none" or (bastion is not None and bastion.public):
        yield "public IPv4 addresses"
    yield "root disks"
