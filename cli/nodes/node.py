"""`orch node`: drains, reboots and replaces nodes and resets GPUs, wave by wave, and goes on after a kill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from orch.cli.errors import end, say, tell
from orch.cli.maintenance.maintain import maintain
from orch.cli.maintenance.options import Handling, Waves
from orch.cli.options import Nodes, OfFleet, with_records
from orch.spec.errors import ExitCode

app = typer.Typer(no_args_is_help=True)


@app.command("drain", epilog='Example: orch node drain "gpu[1-4]" --wait 2h --reason "fan broken"')
@with_records
def drain(
    nodes: Nodes,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let drained nodes take jobs again.")] = False,
    waves: Waves,
    fleet: OfFleet = None,
    how: Handling,
) -> None:
    """Keep new jobs off nodes, and wait until the runs on them have ended or are stopped.

    Nodes that somebody else cordoned are left alone. With runs on the nodes it asks for --wait or
    --stop-runs. A call that was killed is gone on with by the same command.
    """
    if undo:
        how.refuse_with_undo()
        _undo_drain(nodes, fleet, rehearse=how.rehearse)
        return
    maintain("drain", nodes, fleet, waves, how)


@app.command("reboot", epilog="Example: orch node reboot gpu3 --stop-runs --yes")
@with_records
def reboot(
    nodes: Nodes,
    *,
    waves: Waves,
    fleet: OfFleet = None,
    how: Handling,
) -> None:
    """Drain nodes and reboot them; those that `orch check` finds in order take jobs again.

    A node that does not come back, or is not in order, stays cordoned, and the next wave does not begin.
    """
    maintain("reboot", nodes, fleet, waves, how)


@app.command("replace", epilog="Example: orch node replace gpu-3 --stop-runs --report gpu-3.md")
@with_records
def replace(
    nodes: Nodes,
    *,
    waves: Waves,
    fleet: OfFleet = None,
    how: Handling,
) -> None:
    """Drain nodes, remove their machines and make them anew under the same names and indices.

    Also nodes that do not answer. The fleet's file has to be brought up: it changes nothing else.
    """
    maintain("replace", nodes, fleet, waves, how)


@app.command("reset-gpu", epilog="Example: orch node reset-gpu gpu3 --wait 1h --report gpu3.md")
@with_records
def reset_gpu(
    nodes: Nodes,
    *,
    waves: Waves,
    fleet: OfFleet = None,
    how: Handling,
) -> None:
    """Collect evidence of faulty NVIDIA GPUs, drain their nodes and reset them, where a reset helps.

    What the kernel told (Xids) decides: faults of applications need no reset, and some of the hardware need
    a reboot or another node; then no run is stopped. On boards with NVSwitches all GPUs are reset.
    """
    maintain("reset-gpu", nodes, fleet, waves, how)


NODE_S = 15.0


def _undo_drain(words: Sequence[str], fleet: str | None, *, rehearse: bool) -> None:
    """Remove the cordons of this project's maintenance, and give up what of it was interrupted there. Others'
    cordons stay."""
    from orch.cli.driver.opening import open_runner
    from orch.cli.maintenance.maintain import nodes_by_fleet
    from orch.runner.node.status import node_status
    from orch.runner.node_api.connector import fan_out
    from orch.runner.node_api.cordon import unmark_of
    from orch.spec.grammar.hosts import fold
    from orch.stacks.project.project import ledger_scope
    from orch.stacks.record.change_log import undertaken

    with open_runner(None, as_json=True, rehearse=rehearse) as (project, runner):
        chosen = nodes_by_fleet(project, words, fleet)
        names = [node.name for _, node in chosen]
        holds = [f"{name}/{node.name}" for name, node in chosen]
        for each in runner.ledger.changes.listed(project.name, verbs=("node",), unfinished=True):
            if each.scope == ledger_scope(project) and not each.held and set(each.holds) & set(holds):
                runner.ledger.changes.abandon(each.id)
                say(f"change {each.id} (`orch {each.verb}` of {each.subject}) is given up")
        errors = []
        with undertaken(project, "node drain --undo", f"nodes {fold(sorted(names))}", holds=holds):
            looks = fan_out(
                [node for _, node in chosen],
                lambda node: node_status(node, runner.connector, deadline_s=NODE_S),
            )
            for look in looks:
                name, cordon = look.node.name, look.value.cordon if look.value is not None else None
                if look.value is None or look.value.status == "unreachable":
                    tell(f"{name}: does not answer, its cordon stays")
                    errors.append(name)
                    continue
                ours = (
                    re.search(rf"\((change \d+ of {re.escape(project.name)})\)", cordon.reason)
                    if cordon
                    else None
                )
                if cordon is None:
                    say(f"{name}: is not cordoned")
                elif ours is None:
                    tell(f"{name}: left alone, its cordon is not of `orch node`: {cordon}")
                    errors.append(name)
                else:
                    (result,) = unmark_of([look.node], runner.connector, ours[1], deadline_s=NODE_S)
                    if result.error is not None:
                        tell(result.error.text())
                        errors.append(name)
                    else:
                        say(f"{name}: may take jobs again")
    end(ExitCode.HOSTS if errors else ExitCode.OK)
