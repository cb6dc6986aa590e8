"""Reboots nodes, and knows by their boot ids that they did."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orch.images.client import connect
from orch.runner.errors import CommandTimeout, HostUnreachable
from orch.runner.node.status import node_status
from orch.runner.node_api.commands import Command, as_root
from orch.spec.errors import OrchError
from orch.spec.grammar.values import render_duration
from orch.spec.state import NodeState
from orch.stacks.maintenance.context import Failures, Maintenance
from orch.stacks.maintenance.errors import MaintenanceError
from orch.stacks.maintenance.plan import LIMIT_S

BEFORE, REBOOT, READY = "boot id before", "reboot", "ready"

ANSWER_S = 15.0
PAUSE_S = 2.0

# The first process of a container starts anew with the container; that of a machine with the machine.
BOOT_ID = """\
cat /proc/sys/kernel/random/boot_id || exit 1
stat=$(cat /proc/1/stat) || exit 1
set -- ${stat##*) }
shift 19
echo "$1"
"""

# What asks for it ends first: the connection is closed in order.
REBOOT_TEXT = """\
command -v systemctl >/dev/null 2>&1 && how='systemctl reboot' || how=reboot
command -v ${how%% *} >/dev/null 2>&1 || { echo "there is neither systemctl nor reboot" >&2; exit 1; }
command -v setsid >/dev/null 2>&1 && apart=setsid || apart=
$apart sh -c "sleep 1; $how || reboot -f" </dev/null >/dev/null 2>&1 &
"""


def reboot(at: Maintenance, names: Sequence[str], failures: Failures) -> None:
    """Reboot nodes, and wait until each answers under a new boot id and can run jobs."""
    at.on_each(names, BEFORE, lambda node: boot_id(at, node), failures)
    at.on_each(names, REBOOT, lambda node: _reboot(at, node), failures)
    at.on_each(names, READY, lambda node: wait_ready(at, node, LIMIT_S["reboot"]), failures)


def boot_id(at: Maintenance, node: NodeState) -> str:
    """Return the boot id of a node. Raises HostUnreachable, MaintenanceError."""
    at.connector.drop(node)
    command = Command(as_root(BOOT_ID), "ask for the boot id", timeout_s=ANSWER_S)
    result = at.connector.run(node, command, deadline_s=ANSWER_S)
    words = result.stdout.split()
    if not result.ok or len(words) != 2:
        raise MaintenanceError(
            f"node {node.name} does not tell its boot id",
            detail=result.stderr.strip() or result.ending,
            code="ORCH402",
        )
    return " ".join(words)


def _reboot(at: Maintenance, node: NodeState) -> str:
    before = at.journal.message_of(node.name, BEFORE)
    if _present(at, node) in (None, before):
        # Where it does not answer now, an earlier call may have asked, and it is on its way.
        asked = _ask(at, node)
        if not asked:
            at.tell(f"{node.name}: does not answer, so it may be rebooting")
    deadline = time.monotonic() + LIMIT_S["reboot"]
    while (present := _present(at, node)) in (None, before):
        if time.monotonic() > deadline:
            raise MaintenanceError(
                f"node {node.name} has not come back within {render_duration(LIMIT_S['reboot'])}",
                detail="it does not answer" if present is None else "it answers, and has not rebooted",
                hint=f"look at its console; `orch node replace {node.name}` makes it anew",
                code="ORCH402",
            )
        time.sleep(PAUSE_S)
    return f"boot id {present}"


def _present(at: Maintenance, node: NodeState) -> str | None:
    """The boot id; None while the node does not answer."""
    try:
        return boot_id(at, node)
    except OrchError as error:
        if isinstance(error, HostUnreachable | CommandTimeout | MaintenanceError):
            return None
        raise


def _ask(at: Maintenance, node: NodeState) -> bool:
    """Ask a node to reboot; False where it does not answer."""
    if node.access.kind == "ssh" and _is_container(at, node):
        _restart_container(node)
        return True
    command = Command(as_root(REBOOT_TEXT), "reboot", timeout_s=ANSWER_S)
    try:
        result = at.connector.run(node, command, deadline_s=ANSWER_S)
    except (HostUnreachable, CommandTimeout):
        return False
    if not result.ok:
        raise MaintenanceError(
            f"node {node.name} was not rebooted",
            detail=result.stderr.strip() or result.ending,
            code="ORCH402",
        )
    return True


def _is_container(at: Maintenance, node: NodeState) -> bool:
    """Return True if a node is a container of this machine: of a local fleet, or of a rehearsal."""
    fleet = at.plan.node(node.name)
    return at.project.rehearsal or fleet.backend == "local"


def _restart_container(node: NodeState) -> None:
    """A container has no reboot of its own: this machine's Docker starts it anew. It is the one that is
    reached at the node's port."""
    client = connect()
    for container in client.containers.list(all=True, filters={"publish": str(node.published_port)}):
        container.restart(timeout=10)
        return
    raise MaintenanceError(
        f"no container of this machine is node {node.name}",
        detail=f"none is reached at port {node.published_port}",
        hint=f"`orch node replace {node.name}` makes it anew",
        code="ORCH402",
    )


def wait_ready(at: Maintenance, node: NodeState, limit_s: int) -> str:
    """Wait until a node answers, has prepared itself and can run jobs. Raises MaintenanceError."""
    deadline = time.monotonic() + limit_s
    while True:
        status = node_status(node, at.connector, deadline_s=ANSWER_S)
        if status.status not in ("unreachable", "provisioning", "failure"):
            return "answers, and can run jobs"
        if time.monotonic() > deadline or (status.unfit is not None):
            raise MaintenanceError(
                f"node {node.name} is not ready",
                detail=status.reason or status.status,
                hint=f"`orch check` tells more; `orch node replace {node.name}` makes it anew",
                code="ORCH402",
            )
        time.sleep(PAUSE_S)
