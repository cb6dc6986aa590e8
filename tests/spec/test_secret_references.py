"""References to secrets stay references until something is launched; text that looks like one never is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.spec.diagnostics import Severity
from orch.spec.grammar import interpolate
from orch.spec.grammar.interpolate import ReferenceSite
from orch.spec.loader.load import load_paths

JOB = {"node_rank": "3", "run_name": "train"}
TEXT = st.text(alphabet="ab${} .", max_size=20)


def launched(template: str, environ: dict[str, str], secrets: dict[str, str]) -> str:
    """A text of a fleet's `env`, from the file to the job."""
    read = interpolate.fill_environment(template, ReferenceSite.LAUNCH, environ)[0]
    return interpolate.fill_secrets(
        interpolate.render_for_launch(read, JOB) if "${{" in read else read, secrets
    )


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("${{ secrets.a }}", "S$ECRET"),
        ("x-${{secrets.a}}-${{ orch.node_rank }}", "x-S$ECRET-3"),
        ("$${{ secrets.a }}", "${{ secrets.a }}"),
        ("$$${{ secrets.a }}", "$S$ECRET"),
        ("$$$${{ secrets.a }}", "$${{ secrets.a }}"),
        ("$HOME 5$$", "$HOME 5$"),
        ("$${{ x ${{ secrets.a }} $$", "${{ x S$ECRET $"),
        ("${{ secrets.other }}", "${{ secrets.other }}"),
    ],
)
def test_a_text_is_filled_in_once(text: str, final: str) -> None:
    assert launched(text, {}, {"a": "S$ECRET"}) == final


def test_a_secret_that_looks_like_a_reference_is_not_read_again() -> None:
    secrets = {"a": "${{ secrets.b }} $$ ${{ orch.node_rank }}", "b": "no"}
    assert launched("<${{ secrets.a }}>", {}, secrets) == f"<{secrets['a']}>"


@given(TEXT, TEXT)
def test_values_of_the_environment_and_of_the_command_line_are_never_read_again(one: str, two: str) -> None:
    secrets = {"a": "SECRET"}
    given_text = "${{ env.X }}${{ env.Y }}${{ secrets.a }}"
    assert launched(given_text, {"X": one, "Y": two}, secrets) == f"{one}{two}SECRET"
    assert launched("${{ env.X }}", {"X": one}, secrets) == one
    assert interpolate.fill_secrets(interpolate.literal(one), secrets) == one
    task = interpolate.fill_environment("${{ env.X }}", ReferenceSite.TEXT, {"X": one})[0]
    assert interpolate.fill_secrets(interpolate.render_for_launch(task, JOB), secrets) == one


@given(st.text(alphabet="ab$. ", max_size=20))
def test_text_without_references_is_final_when_it_is_read(text: str) -> None:
    read = interpolate.fill_environment(text, ReferenceSite.LAUNCH, {})[0]
    assert read == interpolate.fill_environment(text, ReferenceSite.READ, {})[0]


def test_names_are_found_where_they_count_and_only_there() -> None:
    texts = ("${{ secrets.a }} ${{secrets.b-c}}", "$${{ secrets.no }}", "${{ env.secrets }}", "${{ unclosed")
    assert interpolate.secret_names(*texts) == {"a", "b-c"}


def test_the_store_is_looked_at_only_where_a_file_refers_to_it(tmp_path: Path) -> None:
    asked: list[int] = []

    def names() -> set[str]:
        asked.append(1)
        return {"hf_token"}

    plain, referring = tmp_path / "plain.yml", tmp_path / "referring.yml"
    plain.write_text("type: task\nimage: x\nenv: {A: '1', B: '$${{ secrets.x }}'}\n")
    assert load_paths([plain], secrets=names).diagnostics == ()
    assert asked == []
    referring.write_text(
        "type: task\nimage: x\nenv: {A: '${{ secrets.hf_tokn }}', B: '${{ secrets.hf_token }}'}\n"
    )
    (found,) = load_paths([referring], secrets=names).diagnostics
    assert (found.code, found.severity, found.span.line) == ("ORCH172", Severity.WARNING, 3)
    assert "did you mean 'hf_token'? Else `orch secret set hf_tokn`" in (found.hint or "")
    assert asked == [1]
    (found,) = load_paths([referring], secrets=names, launch=("task",)).diagnostics
    assert found.severity is Severity.ERROR


def test_a_variable_of_the_caller_that_looks_like_a_reference_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nname: ff\nnodes: 1\nenv: [OWN, 'A=${{ secrets.a }}']\n")
    environ = {"OWN": "$1 ${{ secrets.a }}"}
    (fleet,) = load_paths([path], environ=environ).require().fleets
    final = {key: interpolate.fill_secrets(text or "", {"a": "S"}) for key, text in fleet.env.items()}
    assert final == {"OWN": "$1 ${{ secrets.a }}", "A": "S"}
