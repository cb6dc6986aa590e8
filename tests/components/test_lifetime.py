"""Machines that end themselves when the time of their fleet is over: the script, in a real shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.support import run_beside

from orch.components.lifetime import AHEAD_S, LOOK_S, OVERDUE_S, UNSET_S, Lifetime, doubt, is_over
from orch.runner.node_api.commands import NODE_HOME
from orch.templates import ShellText

STARTS, GIVEN_UP = 1_000_000, 1_000_600


def ended_at(
    folder: Path, tag: str, *, known: str = "", synchronised: str = "yes", up_s: int = 10_000
) -> int | None:
    """Seconds after its start at which a machine with 300 s left ends itself; None where it goes on.

    `tag`: shell text that tells its tag, as the metadata service does; `known`: what it was told before;
    `synchronised`: what systemd says of its clock; `up_s`: how long it was up when the script started.
    """
    home, clock, tools = folder / "home", folder / "clock", folder / "bin"
    for made in (home, tools):
        made.mkdir()
    clock.write_text(str(STARTS))
    if known:
        (home / "ends").write_text(known)
    commands = {
        "date": f'case $* in +%s) cat {clock};; *) exec /bin/date "$@";; esac',
        "sleep": f"echo $(($(cat {clock}) + $1)) > {clock}; "
        f"[ $(cat {clock}) -lt {GIVEN_UP} ] || rm -f {home}/ttl.sh",
        "curl": f"now=$(($(cat {clock}) - {STARTS})); case $* in *PUT*) echo token;; *) {tag};; esac",
        "timedatectl": f"echo NTPSynchronized={synchronised}",
        "off": f"cp {clock} {folder}/off; rm {home}/ttl.sh",
    }
    script = Lifetime(STARTS, 300).script(ShellText("off")).replace(NODE_HOME, str(home))
    (folder / "uptime").write_text(f"{up_s}.5 1.0\n")
    script = script.replace("/proc/uptime", str(folder / "uptime"))
    (home / "ttl.sh").write_text(script)
    run_beside(tools, commands, script)
    if not (folder / "off").exists():
        return None
    # No job begins on it from then on.
    assert (home / "cordon").read_text().startswith("orch|")
    return int((folder / "off").read_text()) - STARTS


@pytest.mark.parametrize(
    ("tag", "known", "at"),
    [
        ("exit 22", "", 300),
        ("echo nonsense", "", 300),
        (f"echo {STARTS + 300}", "", 300),
        # The file says another time meanwhile.
        (f"[ $now -lt 100 ] && echo {STARTS + 300} || echo {STARTS + 400}", "", 400),
        (f"[ $now -lt 100 ] && echo {STARTS + 300} || echo {STARTS + 50}", "", 100),
        (f"echo {STARTS + 10_000}", "", None),
        # It was told, and after a reboot nobody answers.
        ("exit 22", str(STARTS + 400), 400),
    ],
)
def test_a_machine_ends_itself_when_its_fleets_time_is_over(
    tmp_path: Path, tag: str, known: str, at: int | None
) -> None:
    assert 100 % LOOK_S == 0
    assert ended_at(tmp_path, tag, known=known) == at


@pytest.mark.parametrize(
    ("synchronised", "up_s", "at"),
    [("no", 30, None), ("no", UNSET_S - 1, None), ("no", UNSET_S, 0), ("yes", 30, 0)],
)
def test_a_clock_that_nothing_has_set_ends_no_machine_at_its_boot(
    tmp_path: Path, synchronised: str, up_s: int, at: int | None
) -> None:
    """Its clock shows a moment after its end from the beginning."""
    tag = f"echo {STARTS - 50}"
    assert ended_at(tmp_path, tag, synchronised=synchronised, up_s=up_s) == at


def test_a_clock_in_doubt_removes_no_fleet() -> None:
    ends = 1_800_000_000
    assert doubt(ends, ends, ends - 600) == ""
    assert doubt(ends + OVERDUE_S, ends, None) == ""
    assert "its time was over at 2027-01-15" in doubt(ends + OVERDUE_S + 1, ends, ends - 600)
    # Whoever changed it last had a clock that is a little, or much, ahead.
    assert doubt(ends, ends, ends + AHEAD_S) == ""
    assert "the state was changed at 2027-01-15" in doubt(ends, ends, ends + AHEAD_S + 1)


def test_a_fleets_end_is_a_pin() -> None:
    pins = Lifetime(STARTS, 300).pins
    assert [is_over(pins, STARTS + after) for after in (0, 299, 300)] == [False, False, True]
    assert not is_over({}, STARTS)
