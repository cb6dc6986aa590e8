"""What EC2 tells a while after instances were made: the keys on their consoles, and where they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from orch.components.aws.account import gather_facts
from orch.components.cloud import polling
from orch.components.cloud.polling import poll

# Where instances are is told a little after their launch.
TOPOLOGY_S = 25.0
TOPOLOGY_PAUSE_S = 5.0


def host_keys(
    session: gather_facts.Session, region: str, ids: Sequence[str], endpoint: str | None, *, whole: bool
) -> Mapping[str, str]:
    """The host keys that new instances show on their consoles. Raises CloudRefused, also where the `whole`
    fleet is needed and some show none."""

    def look(some: Sequence[str]) -> dict[str, str]:
        return gather_facts.host_keys(session, region, some, endpoint)

    where = "see `aws ec2 get-console-output --latest --instance-id …`"
    return polling.host_keys(look, ids, whole=whole, where=where)


def topology(
    session: gather_facts.Session, region: str, ids: Sequence[str], endpoint: str | None
) -> Mapping[str, tuple[str, ...]]:
    """Where the instances are. Those that AWS tells nothing of, or a refusal, leave ranks by number."""

    def told(found: Collection[str]) -> bool:
        return len(found) == len(ids)

    try:
        return poll(
            lambda: gather_facts.topology(session, region, ids, endpoint),
            told,
            pause_s=TOPOLOGY_PAUSE_S,
            for_s=TOPOLOGY_S,
        )
    except gather_facts.CloudRefused as refused:
        import pulumi

        pulumi.log.warn(f"ranks go by node number: {refused.summary} ({refused.detail})")
        return {}
