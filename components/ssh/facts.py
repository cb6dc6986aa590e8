"""What must be asked of existing hosts before a fleet of them is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch.components.request import NO_CONSENT, Approvals
from orch.runner.hosts.checks.types import Wanted
from orch.runner.hosts.naming import located
from orch.runner.hosts.survey import Survey, survey
from orch.runner.hosts.targets import Target, find_targets
from orch.runner.ssh.pool import SshTransport

if TYPE_CHECKING:
    from orch.spec.models import Fleet

REACH_FACTOR = 2
"""A host gets this many times `connect_timeout` to be reached: a lost packet is tried again."""


@dataclass(frozen=True)
class SshFacts:
    """What the hosts of a fleet said. `targets`: the way to each, key files as written."""

    survey: Survey
    targets: Mapping[str, Target]


def ask(
    fleet: Fleet,
    folder: Path,
    *,
    pinned: Mapping[str, str] | None = None,
    consent: Approvals = NO_CONSENT,
    network: str | None = None,
) -> SshFacts:
    """Ask every host of `fleet`, whose file lies in `folder`; never raises for one of them.

    `pinned` are the host keys the stack accepted, `consent` says which others are, `network` is the one the
    stack uses. A host whose key nobody has accepted is not logged in to. Raises BadSshConfig.
    """
    config = fleet.ssh_config
    if config is None:
        raise TypeError("a fleet without hosts")
    found = find_targets(
        config,
        folder,
        pinned or {},
        accepted=consent.keys,
        anew=consent.rekeyed,
        unseen=consent.unseen,
    )
    connect_s = float(config.connect_timeout_s)
    wanted = Wanted(
        cluster=fleet.placement == "cluster",
        network=config.network or (None if any(m.internal_ip for m in config.machines()) else network),
        image=fleet.image,
        mesh=config.preflight != "off",
        external=config.preflight != "off",
    )
    transport = SshTransport(connect_timeout_s=connect_s, deadline_s=REACH_FACTOR * connect_s)
    try:
        here = [
            replace(each, node=located(each.node, folder)) if isinstance(each, Target) else each
            for each in found
        ]
        seen = survey(here, transport, wanted, parallel=config.parallel)
    finally:
        transport.close()
    return SshFacts(seen, {each.name: each for each in found if isinstance(each, Target)})
