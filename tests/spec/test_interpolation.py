"""References in text: filled from the environment when read, from the job when it starts, each text once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.spec.grammar import interpolate
from orch.spec.grammar.interpolate import ReferenceSite

JOB = {"node_rank": "3", "job_num": "3", "run_name": "train"}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("r${{ orch.node_rank }}", "r3"),
        ("${{dstack.node_rank}}/${{ orch.run_name }}", "3/train"),
        ("$HOME $oauthtoken", "$HOME $oauthtoken"),
        ("5$$", "5$"),
        ("$${{ orch.node_rank }}", "${{ orch.node_rank }}"),
        ("$$${{ orch.node_rank }}", "$3"),
    ],
)
def test_text_of_a_job(text: str, rendered: str) -> None:
    assert interpolate.render_text(text, JOB) == rendered


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("kill $$", "kill $$"),
        ("echo $${{ orch.node_rank }}", "echo ${{ orch.node_rank }}"),
        ("run ${{ run.args }}", "run --lr 1 'a b'"),
        ("echo $((1 + 2)) ${X:-y}", "echo $((1 + 2)) ${X:-y}"),
    ],
)
def test_a_command_keeps_what_belongs_to_the_shell(text: str, rendered: str) -> None:
    assert interpolate.render_command(text, JOB, ["--lr", "1", "a b"]) == rendered


def test_words_after_the_dashes_become_arguments_of_their_own() -> None:
    args = interpolate.split_words("--rank ${{ orch.node_rank }} ${{  run.args }} 'x y'")
    assert args == ("--rank", "${{orch.node_rank}}", "${{run.args}}", "x y")
    assert interpolate.render_args(args, JOB, ["--lr", "1"]) == ("--rank", "3", "--lr", "1", "x y")


@given(st.text(alphabet="ab${} .", max_size=20))
def test_a_value_of_the_environment_is_never_read_again(value: str) -> None:
    for site, render in (
        (ReferenceSite.TEXT, interpolate.render_text),
        (ReferenceSite.COMMAND, interpolate.render_command),
    ):
        filled, lent, unset = interpolate.fill_environment("<${{ env.X }}>", site, {"X": value})
        assert (lent, unset) == ({"X": value}, ())
        assert render(filled, JOB) == f"<{value}>"
    assert interpolate.fill_environment("<${{ env.X }}>", ReferenceSite.READ, {"X": value})[0] == f"<{value}>"
