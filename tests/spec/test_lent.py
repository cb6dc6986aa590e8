"""What `${{ env.X }}` brings into a file comes out in no message, whole or in part."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from kit.leaves import distinct_leaves, written

from orch.cli.validate import Format, validate
from orch.spec.diagnostics import Diagnostic, render_github, render_human, render_json, render_sarif
from orch.spec.loader.load import load_paths

# Made so that parts of them are in no English word; with what readers split texts at.
CANARIES = (
    "qzxwv7-KJQXZ.jvbqk",
    "Zxqjk/wvqzj:pqxzk..vkqjz@xjqwz=vqkxj",
    "  vjqxz\n\n  KQZJW 9qzjx ",
    "4077139288GX",
    "k" * 90,
    "Q7X9",
    "@;#~",
    " %qj=  ",
)
PART = 5


OTHER = re.compile(r"[\W_]+")
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def bare(text: str) -> str:
    """Its letters and digits."""
    return OTHER.sub("", text.casefold())


@cache
def parts(canary: str) -> set[str]:
    whole = bare(canary)
    return {whole[at : at + PART] for at in range(len(whole) - PART + 1)}


def leaks(text: str, canary: str) -> bool:
    if canary.strip().casefold() in text.casefold():
        return True
    told = bare(text)
    return any(part in told for part in parts(canary))


@cache
def every_form(found: tuple[Diagnostic, ...]) -> str:
    """Most diagnostics are the same whatever the environment holds."""
    told = "\n".join(form(found) for form in (render_human, render_json, render_github, render_sarif))
    return DIGEST.sub("", told)  # five digits of a canary are in one of a few thousand by chance


def test_no_property_quotes_what_came_from_the_environment(tmp_path: Path) -> None:
    told = dict.fromkeys(CANARIES, 0)
    for leaf in distinct_leaves():
        for text in ("${{ env.TOKEN }}", "a${{ env.TOKEN }}:${{env.TOKEN}}"):
            path = written(tmp_path, leaf, next(leaf.documents(text)))
            for canary in CANARIES:
                if found := load_paths([path], environ={"TOKEN": canary}, launch=True).diagnostics:
                    told[canary] += 1
                    assert not leaks(every_form(found), canary), (canary, str(leaf), render_human(found))
    assert min(told.values()) > 500


def test_a_password_in_the_wrong_place_is_told_by_its_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nnodes: 2\nspot_policy: ${{ env.AWS_SECRET_ACCESS_KEY }}\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    for format in Format:
        assert validate([str(path)], format) == 3
        out, err = capsys.readouterr()
        assert "wJalr" not in out + err
        assert "${{ env.AWS_SECRET_ACCESS_KEY }}' is not `spot`, `on-demand` or `auto`" in out + err


def test_the_same_mistake_is_told_of_the_text_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nnodes: 2\nresources: {memory: '${{ env.MEMORY }}'}\n")
    (found,) = load_paths([path], environ={"MEMORY": "16Gi"}).diagnostics
    assert (found.code, found.summary) == ("ORCH120", "'${{ env.MEMORY }}' is not a size")
    assert found.hint == "write a number and a unit, such as `16GB`"
    assert found.replacement is None


def test_a_mistake_that_only_the_value_makes_is_told_by_its_code(tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text(
        "type: task\nimage: x\nmax_duration: ${{ env.LONG }}\nports: ['${{ env.P }}:80', '9999:81']\n"
    )
    found = load_paths([path], environ={"LONG": "4:00:00", "P": "9999"}).diagnostics
    assert [each.code for each in found] == ["ORCH124", "ORCH153"]
    assert json.loads(render_json(found))["diagnostics"][0]["replacement"] is None
    assert "4h" not in render_human(found[:1])


def test_what_one_file_borrowed_is_not_quoted_by_another(tmp_path: Path) -> None:
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: ${{ env.NAME }}\nnodes: 2\n")
    (tmp_path / "task.yml").write_text("type: task\nimage: x\nnodes: 2\nfleets: ['${{ env.NAME }}']\n")
    (found,) = load_paths([tmp_path], environ={"NAME": "qzxwv-pool"}).diagnostics
    assert found.code == "ORCH241"
    assert "qzxwv" not in render_json([found])
    assert found.hint == "add `placement: cluster` to `${{ env.NAME }}`"


def test_a_plan_says_nothing_of_it_either(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(
        "type: fleet\nname: lab\nnodes: 2\nbackends: [aws]\ninstance_types: ['${{ env.TYPE }}']\n"
    )
    (document,) = load_paths([path], environ={"TYPE": "qzxwv.48xlarge"}).documents
    found = document.diagnostic(
        "ORCH202",
        "instance_types[0]",
        "the catalogue has no AWS type 'qzxwv.48xlarge'",
        hint="did you mean 'p5.48xlarge'?",
    )
    assert found.summary == "the catalogue has no AWS type '${{ env.TYPE }}'"
    assert "48xl" not in render_json([found])


@pytest.mark.parametrize("pin", ["q7x9", "4711", "a-b1"])
def test_a_value_of_four_characters_is_told_by_its_reference(tmp_path: Path, pin: str) -> None:
    (tmp_path / "fleet.yml").write_text("type: fleet\nname: ${{ env.NAME }}\nnodes: 2\n")
    (tmp_path / "task.yml").write_text("type: task\nimage: x\nnodes: 2\nfleets: ['${{ env.NAME }}']\n")
    found = load_paths([tmp_path], environ={"NAME": pin}).diagnostics
    assert pin not in render_json(found)
    (document,) = load_paths([tmp_path / "fleet.yml"], environ={"NAME": "good-name", "PIN": pin}).documents
    document.draft.context.env_values["PIN"] = pin
    told = document.diagnostic("ORCH202", "name", f"{pin!r} is none", hint=f"not {pin.upper()}, nor env")
    assert told.summary == "'${{ env.PIN }}' is none"
    assert told.hint == "not ${{ env.PIN }}, nor env"


def test_values_that_are_parts_of_references_leave_references_whole(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text("type: fleet\nname: lab\nnodes: 2\n")
    (document,) = load_paths([path], environ={}).documents
    document.draft.context.env_values.update({"A": "env.", "BLANK": "    ", "B": "${{ env.A }}", "C": "xenv"})
    found = document.diagnostic("ORCH202", "name", "env. and ${{ env.C }}, xenv")
    assert found.summary == "${{ env.A }} and ${{ env.C }}, ${{ env.C }}"
