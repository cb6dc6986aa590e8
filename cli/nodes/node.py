"""`orch node`: drains, reboots and replaces nodes and resets GPUs, wave by wave, and goes on after a kill."""

from __future__ import annotations

from typing import Annotated

import typer

from orch.cli.context import Json, Rehearse, Yes
from orch.cli.nodes.maintain import (
    SERIAL,
    Fleet,
    How,
    MaxFail,
    Nodes,
    PlanOnly,
    Reason,
    Report,
    Serial,
    StopRuns,
    Wait,
    maintain,
    options_of,
    refuse_with_undo,
)

app = typer.Typer(no_args_is_help=True)


@app.command("drain", epilog='Example: orch node drain "gpu[1-4]" --wait 2h --reason "fan broken"')
def drain(
    nodes: Nodes,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let drained nodes take jobs again.")] = False,
    stop_runs: StopRuns = False,
    wait: Wait = None,
    serial: Serial = SERIAL,
    max_fail: MaxFail = "0",
    reason: Reason = "",
    fleet: Fleet = None,
    plan_only: PlanOnly = False,
    report: Report = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Keep new jobs off nodes, and wait until the runs on them have ended or are stopped.

    Nodes that somebody else cordoned are left alone. With runs on the nodes it asks for --wait or
    --stop-runs. A call that was killed is gone on with by the same command.
    """
    how = How(yes, as_json, plan_only, rehearse, report)
    if undo:
        from orch.cli.nodes.undrain import undo_drain

        refuse_with_undo(how)
        undo_drain(nodes, fleet, rehearse=rehearse)
        return
    maintain("drain", nodes, fleet, options_of(serial, max_fail, wait, reason, stop_runs=stop_runs), how)


@app.command("reboot", epilog="Example: orch node reboot gpu3 --stop-runs --yes")
def reboot(
    nodes: Nodes,
    *,
    stop_runs: StopRuns = False,
    wait: Wait = None,
    serial: Serial = SERIAL,
    max_fail: MaxFail = "0",
    reason: Reason = "",
    fleet: Fleet = None,
    plan_only: PlanOnly = False,
    report: Report = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Drain nodes and reboot them; those that `orch check` finds in order take jobs again.

    A node that does not come back, or is not in order, stays cordoned, and the next wave does not begin.
    """
    how = How(yes, as_json, plan_only, rehearse, report)
    maintain("reboot", nodes, fleet, options_of(serial, max_fail, wait, reason, stop_runs=stop_runs), how)


@app.command("replace", epilog="Example: orch node replace gpu-3 --stop-runs --report gpu-3.md")
def replace(
    nodes: Nodes,
    *,
    stop_runs: StopRuns = False,
    wait: Wait = None,
    serial: Serial = SERIAL,
    max_fail: MaxFail = "0",
    reason: Reason = "",
    fleet: Fleet = None,
    plan_only: PlanOnly = False,
    report: Report = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Drain nodes, remove their machines and make them anew under the same names and indices.

    Also nodes that do not answer. The fleet's file has to be brought up: it changes nothing else.
    """
    how = How(yes, as_json, plan_only, rehearse, report)
    maintain("replace", nodes, fleet, options_of(serial, max_fail, wait, reason, stop_runs=stop_runs), how)


@app.command("reset-gpu", epilog="Example: orch node reset-gpu gpu3 --wait 1h --report gpu3.md")
def reset_gpu(
    nodes: Nodes,
    *,
    stop_runs: StopRuns = False,
    wait: Wait = None,
    serial: Serial = SERIAL,
    max_fail: MaxFail = "0",
    reason: Reason = "",
    fleet: Fleet = None,
    plan_only: PlanOnly = False,
    report: Report = None,
    yes: Yes = False,
    as_json: Json = False,
    rehearse: Rehearse = False,
) -> None:
    """Collect evidence of faulty NVIDIA GPUs, drain their nodes and reset them, where a reset helps.

    What the kernel told (Xids) decides: faults of applications need no reset, and some of the hardware need
    a reboot or another node; then no run is stopped. On boards with NVSwitches all GPUs are reset.
    """
    how = How(yes, as_json, plan_only, rehearse, report)
    maintain("reset-gpu", nodes, fleet, options_of(serial, max_fail, wait, reason, stop_runs=stop_runs), how)
