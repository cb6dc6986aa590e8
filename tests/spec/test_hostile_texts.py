"""Each text of each property, with what shells and terminals take amiss: refused in its place, or whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.leaves import distinct_leaves, written

from orch.cli.validate import Format, validate
from orch.spec.diagnostics import render_human
from orch.spec.loader.load import load_paths

HOSTILE = {
    "quotes": "a'b\"c",
    "line": "a\nb",
    "return": "a\rb",
    "substitution": "$(touch pwned)",
    "backticks": "`touch pwned`",
    "separator": "a; touch pwned #",
    "dash": "-oProxyCommand=touch pwned",
    "option": "--privileged",
    "null": "a\0b",
    "escape": "a\x1b[2Jb",
    "line separator": "a\u2028b",
    "right to left": "a\u202eb",
    "long": "a" * 10_000,
    "template": "{{ 7 * 7 }}{% raw %}",
    "open reference": "${{ orch.node_rank",
    "percent": "%h%n",
    "colon": "/a:/b:rw",
    "upwards": "../../../etc/passwd",
}


def test_a_hostile_text_is_refused_in_its_place_or_kept_whole(tmp_path: Path) -> None:
    cases = refused = accepted = 0
    for leaf in distinct_leaves():
        for what, text in HOSTILE.items():
            cases += 1
            path = written(tmp_path, leaf, next(leaf.documents(text)))
            lines = path.read_text("utf-8").splitlines()
            loaded = load_paths([path], environ={})
            errors = [each for each in loaded.diagnostics if each.severity.value == "error"]
            if not errors:
                accepted += 1
                # What this version acts on takes none; parameters of policies are refused by a launch.
                assert what != "null" or load_paths([path], environ={}, launch=True).failed, str(leaf)
                continue
            refused += 1
            for each in errors:
                assert each.span.file == str(path)
                assert 1 <= each.span.line <= len(lines), (str(leaf), what)
                assert 1 <= each.span.column <= len(lines[each.span.line - 1]) + 1, (str(leaf), what)
            said = render_human(errors)
            assert all(char.isprintable() or char == "\n" for char in said), (str(leaf), what)
            assert max(map(len, said.splitlines())) < 12_000
    print(f"{cases} cases: {refused} refused in their place, {accepted} accepted")
    assert cases > 9_000
    assert refused > 5_000


def test_no_message_carries_what_a_terminal_acts_on(tmp_path: Path, capfd: object) -> None:
    path = tmp_path / "x\n::error title=forged::\x1b[2J.yml"
    path.write_text('type: fleet\nname: "a\\e[2J\\nb"\nnodes: "\\e]0;x\\a"\nspot_policy: "\\u202eb"\n')
    assert validate([str(path)], Format.HUMAN) == 3
    said = capfd.readouterr().err  # type: ignore[attr-defined]
    assert "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("::")]


@pytest.mark.parametrize("image", ["[::1]:5000/x:1", "[2001:db8::7]/team/train@sha256:0123", "host:5000/x"])
def test_an_image_may_come_from_a_registry_at_an_address(tmp_path: Path, image: str) -> None:
    path = tmp_path / "train.yml"
    path.write_text(f"type: task\nimage: '{image}'\n")
    assert load_paths([path], environ={}).diagnostics == ()


@pytest.mark.parametrize("image", ["[::1]", "[::1]:5000", "[--x]/y", "[::1]/-y", "[x]/y", "[::1]:/y", "[]/y"])
def test_brackets_are_around_addresses_only(tmp_path: Path, image: str) -> None:
    path = tmp_path / "train.yml"
    path.write_text(f"type: task\nimage: '{image}'\n")
    assert [each.code for each in load_paths([path], environ={}).diagnostics] == ["ORCH162"]


def test_files_may_be_spelled_with_joiners_and_not_turned_around(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, codes in {
        "data/\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645": [],
        "data/\U0001f469\u200d\U0001f4bb": [],
        "data/\u202etxt.exe": ["ORCH162"],
        "data/\u2066x": ["ORCH162"],
    }.items():
        for line in (f"files: ['{name}:/x']", f"files: [{{local_path: '{name}', path: '/{name}'}}]"):
            path = tmp_path / "train.yml"
            path.write_text(f"type: task\nimage: x\n{line}\n", "utf-8")
            found = load_paths([path], environ={}).diagnostics
            assert [each.code for each in found if each.code == "ORCH162"][:1] == codes, line
