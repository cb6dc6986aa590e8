"""Whether a place has room for nodes: a reservation of its capacity that is given back at once.

AWS tells nobody how much room a zone has; who reserves capacity learns it, and has it as long as he pays.
Source: EC2 user guide, "Create a Capacity Reservation": it is either created for all instances, or refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from orch.components.aws.account.client import RegionClient, Session
from orch.components.aws.account.client_errors import CloudRefused, translate_errors
from orch.components.cloud.candidates import CloudCandidate
from orch.components.deployment import Room

# Should the call that gives it back be killed: the shortest end, for reservations end at full hours.
ENDS_AFTER = timedelta(hours=1)


def find_room(
    session: Session, endpoint: str | None, places: Sequence[CloudCandidate], count: int, mark: str
) -> Room:
    """The first of the places, whose zones are known, with room for so many nodes. `mark`: of the stack.

    Raises CloudRefused for what no other place avoids.
    """
    full: list[str] = []
    for place in places:
        client = RegionClient(session, place.region, endpoint)
        zone = next((each.name for each in client.zones() if each.id == place.zone), place.zone)
        try:
            _reserve(client, place, zone, count, mark)
        except CloudRefused as refused:
            if refused.error is None or not refused.error.answer.elsewhere:
                raise
            full.append(f"{place.words}: {refused.error.answer.reason}")
        else:
            return Room(place.words, tuple(full))
    return Room(None, tuple(full))


def _reserve(client: RegionClient, place: CloudCandidate, zone: str, count: int, mark: str) -> None:
    ec2 = client.client("ec2")
    tags = [{"Key": "Name", "Value": "orch: is there room?"}, {"Key": "orch:stack", "Value": mark}]
    with translate_errors(f"reserve room for {count} {place.type.name} in {zone}"):
        answer = ec2.create_capacity_reservation(
            InstanceType=place.type.name,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone=zone,
            InstanceCount=count,
            InstanceMatchCriteria="targeted",
            EndDateType="limited",
            EndDate=datetime.now(timezone.utc) + ENDS_AFTER,
            TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
        )
        reservation = answer["CapacityReservation"]["CapacityReservationId"]
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation)
