"""Host keys of existing servers: asking for new ones, pinning the accepted ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orch.cli.errors import UsageError, print_json, tell
from orch.cli.output.plan import refused_json, waiting_lines
from orch.spec.findings import PlanError
from orch.spec.models import Fleet
from orch.stacks.events.notation import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orch.components.request import NewHostKey
    from orch.spec.loader.load import Document
    from orch.stacks.plans.plan import Plan
    from orch.stacks.plans.request import FleetRequest


def planned(document: Document, operation: Callable[[], Plan], *, as_json: bool = False) -> Plan:
    """The plan that `operation` returns. Raises its PlanError with the place in the file.

    Where no host can be used before a key is accepted, `as_json` prints that as JSON before KeysUnaccepted is
    raised.
    """
    from orch.components.ssh.problems import KeysUnaccepted

    try:
        return operation()
    except KeysUnaccepted as error:
        if as_json and isinstance(document.model, Fleet):
            print_json(refused_json(document.model.name, error, error.problems))
        raise
    except PlanError as error:
        raise error.placed(document) from error


def after_keys(
    document: Document,
    request: FleetRequest,
    preview: Callable[[FleetRequest], Plan],
    confirm: Callable[[str], None],
) -> tuple[Plan, FleetRequest]:
    """The plan after a person accepted the host keys that it needs, and the request with these keys.

    Keys of hosts behind a jump host are known only after the jump host's key is accepted; they are asked for
    in the next round.
    """
    from orch.components.ssh.problems import KeysUnaccepted, new_keys_of

    while True:
        try:
            plan = planned(document, lambda r=request: preview(r))
            waiting = new_keys_of(plan.problems)
        except KeysUnaccepted as error:
            plan, waiting = None, error.keys
        if plan is not None and not waiting:
            return plan, request
        for line in waiting_lines(waiting):
            tell(line)
        tell("  compare them with the hosts' own: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there")
        confirm("Accept these host keys?")
        request = accepting(request, waiting)


def accepting(request: FleetRequest, keys: Iterable[NewHostKey]) -> FleetRequest:
    """The request with accepted keys: a host that shows another key from now on is refused."""
    accepted = {**request.approvals.keys, **{new.host: new.key for new in keys}}
    return replace(request, approvals=replace(request.approvals, keys=accepted))


def rekeyed(fleet: Fleet, hosts: Sequence[str]) -> frozenset[str]:
    """Hosts whose changed key is accepted. Raises UsageError for one that the fleet does not list."""
    if not hosts:
        return frozenset()
    from orch.components.ssh.plan import host_names

    if fleet.ssh_config is None and any("cluster" in each for each in fleet.backend_options):
        return frozenset(hosts)  # its backend knows them
    names = host_names(fleet)
    unknown = [host for host in hosts if host not in names]
    if unknown:
        raise UsageError(
            f"the fleet {fleet.name} has no host {', '.join(unknown)}",
            detail=f"its hosts are {fold(list(names))}" if names else "it is not a fleet of existing hosts",
            hint="write `--accept-host-key HOST` with the name that the fleet's tables show",
        )
    return frozenset(hosts)
