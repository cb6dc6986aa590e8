"""What must be asked of existing hosts before a fleet of them is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orch.components.request import NO_CONSENT, Approvals
from orch.runner.connect import open_connector
from orch.runner.hosts.checks.types import CheckOptions
from orch.runner.hosts.survey import Survey, survey
from orch.runner.ssh.naming import located, pins
from orch.runner.ssh.targets import AcceptNew, SshTarget, find_targets

if TYPE_CHECKING:
    from orch.spec.models import Fleet
    from orch.spec.models.ssh import SshConfig
    from orch.spec.state import NodeState

REACH_FACTOR = 2
"""A host gets this many times `connect_timeout` to be reached: a lost packet is tried again."""


@dataclass(frozen=True)
class SshFacts:
    """What the hosts of a fleet said. `targets`: the way to each, key files as written."""

    survey: Survey
    targets: Mapping[str, SshTarget]


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
    config = _config(fleet)
    options = CheckOptions(
        cluster=fleet.placement == "cluster",
        network=config.network or (None if any(m.internal_ip for m in config.machines()) else network),
        image=fleet.image,
        mesh=config.preflight != "off",
        external=config.preflight != "off",
    )
    return _survey(fleet, folder, options, pinned=pinned or {}, consent=consent)


def check(
    fleet: Fleet, folder: Path, *, known: Sequence[NodeState], unseen: AcceptNew, default_image: str
) -> Survey:
    """The same for who only asks, `fleet` being up with the nodes `known` or not: all is tried.

    `unseen`: whether hosts are looked at whose keys nobody has accepted.
    """
    config = _config(fleet)
    options = CheckOptions(
        cluster=fleet.placement == "cluster", network=config.network, image=fleet.image or default_image
    )
    return _survey(fleet, folder, options, pinned=pins(known), consent=Approvals(unseen=unseen)).survey


def _survey(
    fleet: Fleet, folder: Path, options: CheckOptions, *, pinned: Mapping[str, str], consent: Approvals
) -> SshFacts:
    config = _config(fleet)
    targets = find_targets(
        config, folder, pinned, accepted=consent.keys, rekeyed=consent.rekeyed, accept_new=consent.unseen
    )
    located_targets = [
        replace(each, node=located(each.node, folder)) if isinstance(each, SshTarget) else each
        for each in targets
    ]
    connect_s = float(config.connect_timeout_s)
    connector = open_connector(connect_timeout_s=connect_s, deadline_s=REACH_FACTOR * connect_s)
    try:
        result = survey(located_targets, connector, options, parallel=config.parallel)
    finally:
        connector.close()
    return SshFacts(result, {each.name: each for each in targets if isinstance(each, SshTarget)})


def _config(fleet: Fleet) -> SshConfig:
    if fleet.ssh_config is None:
        raise TypeError("a fleet without hosts")
    return fleet.ssh_config
