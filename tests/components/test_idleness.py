"""Nodes that end themselves: the script that looks for jobs, in a real shell on a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import run_beside

from orch.components.idleness import IdleRule, idle_rule
from orch.runner.node_api.commands import NODE_HOME
from orch.spec.models import Fleet
from orch.templates import ShellText

STARTS, ENDS, LOOK_S = 1000, 3400, 60
HOUR_OLD = "Exited (0) About an hour ago"


def ended_at(
    folder: Path, *, least: int = 0, name: str = "p5-1", docker: str = "", flock: str = "", **steps: str
) -> int | None:
    """Seconds after its start at which a node ends itself, idle for two minutes; None where it stays.

    Each sleep lasts LOOK_S, and runs the step of that second (`at_300`). `docker`: what `docker ps` tells;
    `flock`: what happens while it waits for the lock of claims.
    """
    home, clock, tools = folder / "home", folder / "uptime", folder / "bin"
    for made in (home / "claims", home / "control", home / "boot", tools):
        made.mkdir(parents=True)
    (home / "boot" / "ok").touch()
    clock.write_text(f"{STARTS}.00 1.0\n")
    cases = "".join(f"{STARTS + int(at[3:])}) {step};;\n" for at, step in steps.items())
    commands = {
        "sleep": f"""read -r s _ < {clock}; s=$((${{s%%.*}} + {LOOK_S})); echo $s.00 1.0 > {clock}
[ $s -lt {ENDS} ] || rm -f {home}/idle.sh
cd {home}; case $s in {cases} esac""",
        "docker": docker or "exit 0",
        "hostname": f"echo {name}",
        "off": f"cp {clock} {folder}/off; cp {home}/cordon {folder}; rm -f {home}/cordon {home}/idle.sh",
    }
    if flock:
        commands["flock"] = f"cd {home}; {flock}"
    script = IdleRule("p5", 120, least).script(ShellText("off"))
    script = script.replace(NODE_HOME, str(home)).replace("/proc/uptime", str(clock))
    (home / "idle.sh").write_text(script)
    run_beside(tools, commands, script)
    if not (folder / "off").exists():
        return None
    # No job begins on it from then on.
    assert (folder / "cordon").read_text().startswith("orch|")
    return int(float((folder / "off").read_text().split()[0])) - STARTS


CLAIM = "ln -s 'orch-job|job|ada@desk|then|1' claims/0"
GIVEN_BACK = "rm claims/0"
FETCHED = (
    "mkdir control/orch-job; touch control/orch-job/fetched; "
    "flock control/orch-job/fetched /bin/sleep 15 > /dev/null 2>&1 &"
)


@pytest.mark.parametrize(
    ("given", "at"),
    [
        # A new node waits ten minutes for the job that it was made for.
        ({}, 600),
        ({"at_300": CLAIM, "at_600": GIVEN_BACK}, 720),
        # A run that it was made for wants less; a longer time, or none, is the fleet's.
        ({"at_300": f"{CLAIM}; echo 60 > idle-after", "at_600": GIVEN_BACK}, 660),
        ({"at_300": f"{CLAIM}; echo 0 > idle-after", "at_600": GIVEN_BACK}, 600),
        ({"at_300": f"{CLAIM}; echo 900 > idle-after", "at_600": GIVEN_BACK}, 720),
        ({"at_300": f"{CLAIM}; echo often > idle-after", "at_600": GIVEN_BACK}, 720),
        ({"least": 2, "at_300": f"{CLAIM}; {GIVEN_BACK}; echo 0 > idle-after"}, None),
        # A job that came and went between two looks.
        ({"at_300": f"{CLAIM}; {GIVEN_BACK}"}, 420),
        # Its log and outputs wait for a client, an hour at most.
        ({"at_300": CLAIM, "docker": f"echo 'orch-job {HOUR_OLD}'"}, 420),
        ({"at_300": CLAIM, "docker": "echo 'orch-job Exited (0) 5 minutes ago'"}, None),
        ({"at_300": CLAIM, "docker": "exit 1"}, None),
        ({"at_60": "mkdir control/orch-job", "docker": "echo 'orch-job Up 5 minutes'"}, None),
        # A client brings the outputs of a job that ended long ago.
        ({"at_60": FETCHED, "docker": f"echo 'orch-job {HOUR_OLD}'"}, None),
        # While it is being prepared; one that cannot be costs as much.
        ({"at_60": "rm boot/ok", "at_900": "touch boot/ok"}, 1440),
        ({"at_60": "rm boot/ok; echo broken > boot/failed"}, 600),
        # Somebody may be looking at it.
        ({"at_60": "echo 'ada@desk|then|broken' > cordon"}, None),
        ({"flock": "echo 'ada@desk|then|broken' > cordon"}, None),
        ({"flock": "exit 1"}, None),
        ({"least": 1}, 600),
        ({"least": 2}, None),
        ({"least": 1, "name": "ip-10-0-0-4"}, None),
        # Whatever name it has by now.
        ({"least": 1, "name": "ip-10-0-0-4", "at_60": "echo p5-1 > boot/name"}, 600),
        ({"least": 2, "name": "ip-10-0-0-4", "at_60": "echo p5-1 > boot/name"}, None),
    ],
)
def test_a_node_ends_itself_when_no_job_was_there_for_that_long(
    tmp_path: Path, given: dict[str, object], at: int | None
) -> None:
    assert ended_at(tmp_path, **given) == at  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({"nodes": "0..4"}, "259200/0"),
        ({"nodes": "4"}, None),
        ({"nodes": "4", "idle_duration": "1h"}, "3600/0"),
        ({"nodes": "1..", "idle_duration": "0s"}, "0/1"),
        ({"nodes": "0..4", "idle_duration": "off"}, None),
    ],
)
def test_nodes_above_the_minimum_end_themselves(written: dict[str, str], rule: str | None) -> None:
    found = idle_rule(Fleet.model_validate({"type": "fleet", "name": "p5", **written}))
    assert (str(found) if found else None) == rule
