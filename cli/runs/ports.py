"""Ports of this machine: those that lead to a task's jobs, and addresses that verbs listen on.

Ports of a task are taken before it is submitted, or when it is attached.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from orch.cli.errors import UsageError, tell
from orch.cli.runs.submission import task_of_document

if TYPE_CHECKING:
    from orch.runner.access.forwards import LocalPorts
    from orch.runner.ledger.records import RunRow
    from orch.runner.plan.run_plan import RankPort
    from orch.spec.errors import OrchError
    from orch.spec.loader.load import Document


def hold_ports(held: LocalPorts, document: Document, others: Sequence[RankPort]) -> None:
    """Take the ports of this machine that lead to a task's job. Raises PortTaken at the task's property."""
    from orch.runner.access.forwards import PortRequest, replaced
    from orch.runner.errors import PortTaken
    from orch.runner.placement.rank_groups import first_ranks, rank_groups

    task, _ = task_of_document(document)
    groups = rank_groups(task)
    places = {
        PortRequest(port.container_port, port.local_port, rank): (
            *(("groups", place) if task.groups else ()),
            "ports",
            index,
        )
        for place, (group, rank) in enumerate(zip(groups, first_ranks(groups), strict=True))
        for index, port in enumerate(group.ports)
    }
    for request in replaced(places, others):
        try:
            held.hold(request)
        except PortTaken as error:
            if request in places:
                error.where = str(document.span(places[request]))
            raise


def hold_ports_of_run(held: LocalPorts, row: RunRow, others: Sequence[RankPort]) -> None:
    """Take the ports that lead to a run's jobs. One that is taken is told, and not forwarded.

    Raises PortTaken for one of `others`, which were asked for now.
    """
    from orch.runner.access.forwards import replaced, requested_ports
    from orch.runner.errors import PortTaken
    from orch.runner.ledger.plans import plan_of
    from orch.runner.plan.run_names import as_argument

    written = requested_ports(plan_of(row))
    for request in replaced(written, others):
        try:
            held.hold(request)
        except PortTaken as error:
            if request not in written:
                raise
            tell(
                f"warning: {error.summary}: port {request.job} of the run is not forwarded\n"
                f"  hint: `orch attach {as_argument(row.name)} --port OTHER:{request.job}`, "
                f"or `*:{request.job}` for any free one"
            )


def ports_of(items: Sequence[str]) -> tuple[RankPort, ...]:
    """Ports of `--port` options: `JOB`, `LOCAL:JOB` or `*:JOB`. Raises BadParameter."""
    if not items:
        return ()
    from pydantic import ValidationError

    from orch.runner.plan.run_plan import RankPort
    from orch.spec.models.mounts import PortMapping

    ports: list[RankPort] = []
    for item in items:
        try:
            port = PortMapping.model_validate(item)
        except ValidationError:
            hint = "write 8080, 9000:8080 or *:8080, with ports from 1 to 65535"
            raise typer.BadParameter(f"{item!r} is not a port: {hint}", param_hint="--port") from None
        ports.append(RankPort(job=port.container_port, local=port.local_port))
    return tuple(ports)


Address = tuple[str, int]


def address_of(text: str, option: str) -> Address:
    """`[HOST:]PORT` of an option; 127.0.0.1 without HOST. Raises BadParameter."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{text!r} is not [HOST:]PORT", param_hint=option)
    return host.strip("[]") or "127.0.0.1", int(port)


def cannot_listen(who: str, address: Address, option: str, error: OSError) -> OrchError:
    """PortTaken, as with `--port`, where another program has it or it is not ours; else UsageError."""
    from orch.runner.errors import PortTaken

    kind = PortTaken if error.errno in (errno.EADDRINUSE, errno.EACCES) else UsageError
    return kind(
        f"{who} cannot listen on {address[0]}:{address[1]}",
        detail=error.strerror or str(error),
        hint=f"choose another port with `{option} [HOST:]PORT`; 0 takes any free one",
    )
