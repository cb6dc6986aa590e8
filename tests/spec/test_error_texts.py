"""What strangers' names and answers do to the terminal that an error is read on: nothing."""

from __future__ import annotations

import pytest

from orch.cli.errors import tell
from orch.runner.errors import NodeCordoned
from orch.runner.node_api.claims import Claim, busy_error
from orch.runner.node_api.cordon import Cordon
from orch.runner.node_api.first_boot import unfit_error
from orch.spec.errors import OrchError

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\r\nerror: all is well\u202e\u2028\x9b1m\x00"


@pytest.mark.parametrize(
    "error",
    [
        OrchError(HOSTILE, where=HOSTILE, detail=HOSTILE, hint=HOSTILE, code="ORCH999"),
        unfit_error(HOSTILE, HOSTILE),
        busy_error("n0", 1, 2, [Claim.parse(f"c|{HOSTILE}|{HOSTILE}|{HOSTILE}|{HOSTILE}")]),
        NodeCordoned(f"node n0 is cordoned ({Cordon.parse(HOSTILE)})", where="n0"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_hosts_and_files_say_moves_no_cursor_and_begins_no_message(
    error: OrchError, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(error.text())
    first, *others = capsys.readouterr().err.rstrip("\n").split("\n")
    assert "error" in first
    assert all(line.startswith("  ") for line in others)
    assert "".join((first, *others)).isprintable()
    assert "<1b>[2J" in "".join((first, *others))


def test_what_is_told_beside_errors_is_as_tame(capsys: pytest.CaptureFixture[str]) -> None:
    tell("node n0: \x1b[2Jcleared\nnode n1")
    assert capsys.readouterr().err == "node n0: <1b>[2Jcleared\nnode n1\n"


def test_letters_of_all_languages_and_lines_of_a_detail_stay() -> None:
    told = OrchError("für 例", detail="eins\r\n\tzwei\n", hint="drei").text()
    assert told == "error: für 例\n  eins\n      zwei\n  hint: drei"


def test_colours_of_ours_stay_and_hidden_letters_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    tell("\x1b[33mdrift\x1b[0m \x1b[8mhidden")
    assert capsys.readouterr().err == "\x1b[33mdrift\x1b[0m <1b>[8mhidden\n"
