"""What GCP tells a while after instances were made: which there are, their keys, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orch.components.cloud import polling
from orch.components.cloud.polling import poll
from orch.components.gcp.account import gather_facts
from orch.components.gcp.account.facts import Member

# Instances are listed, and where they stand is told, a little after their creation.
MEMBERS_S = 25.0
MEMBERS_PAUSE_S = 5.0


def host_keys(session: gather_facts.Session, zones: Mapping[str, str], *, whole: bool) -> Mapping[str, str]:
    """The host keys that new instances, each in its zone, show as guest attributes.

    Raises CloudRefused, also where the `whole` fleet is needed and some show none.
    """

    def look(some: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for zone in sorted({zones[name] for name in some}):
            found |= gather_facts.host_keys(session, zone, [name for name in some if zones[name] == zone])
        return found

    where = "see `gcloud compute instances get-serial-port-output …`"
    return polling.host_keys(look, list(zones), whole=whole, where=where)


def members(
    session: gather_facts.Session, zone: str, group: str, count: int, *, needed: bool, hosts: bool = True
) -> tuple[Member, ...]:
    """The fleet's instances once all are listed, or as many as there are by then.

    `hosts`: they tell where they stand by then, too. Where they are `needed` for more than ranks: raises
    CloudRefused when there are too few.
    """

    def there(found: Sequence[Member]) -> bool:
        return len(found) >= count and (not hosts or all(each.host for each in found))

    try:
        found = poll(
            lambda: gather_facts.members(session, zone, group),
            there,
            pause_s=MEMBERS_PAUSE_S,
            for_s=MEMBERS_S,
        )
    except gather_facts.CloudRefused as refused:
        if needed:
            raise
        import pulumi

        pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
        return ()
    if needed and len(found) < count:
        raise gather_facts.CloudRefused(
            f"{len(found)} of {count} nodes are there",
            detail=f"instances in {zone} with the label orch-group={group}",
            hint="run `orch up` again: what is missing is made",
            code="ORCH359",
        )
    return found
