"""Files in `good/` and `reference/` load; files in `bad/` say exactly what their `.expected` beside them
holds, files in `launch/` what `up` and `run` add to that, files in `untrusted/` what is told of strangers'.

`ORCHCTL_TEST_ACCEPT=1` writes the `.expected` files anew: read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pytest

from orch.spec.codes import CODES
from orch.spec.diagnostics import Diagnostic
from orch.spec.loader.load import load_paths

HERE = Path(__file__).parent
GOOD = sorted(path for path in (HERE / "good").rglob("*.yml") if path.parent.name != "examples")
EXAMPLES = sorted((HERE / "good" / "examples").glob("*.yml"))
REFERENCE = sorted((HERE / "reference").glob("*.yml"))
BAD = sorted((HERE / "bad").rglob("*.yml"))
LAUNCH = sorted((HERE / "launch").rglob("*.yml"))
UNTRUSTED = sorted((HERE / "untrusted").rglob("*.yml"))
SECRETS = ("hf_token", "wandb_api_key")


def told(diagnostics: tuple[Diagnostic, ...]) -> str:
    lines: list[str] = []
    for each in diagnostics:
        lines.append(f"{each.span.line}:{each.span.column} {each.severity.value} {each.code} {each.summary}")
        lines += [f"  why: {each.detail}"] if each.detail else []
        lines += [f"  see: {other.span.line}:{other.span.column} {other.message}" for other in each.related]
        lines += [f"  hint: {each.hint}"] if each.hint else []
        lines += [f"  replacement: {each.replacement}"] if each.replacement else []
    return "\n".join(lines) + "\n"


def named(path: Path) -> str:
    return str(path.relative_to(HERE)).removesuffix(".yml")


@pytest.mark.parametrize("path", GOOD, ids=named)
def test_a_good_file_loads_without_a_word(path: Path) -> None:
    loaded = load_paths([path], environ={"HOME": "/root", "TAG": "1.4", "HF_TOKEN": "t"})
    assert told(loaded.diagnostics) == "\n"
    assert loaded.documents


def test_no_block_of_the_reference_documents_is_missing() -> None:
    assert (len(REFERENCE), len(EXAMPLES)) == (35, 8)


@pytest.mark.parametrize("path", REFERENCE + EXAMPLES, ids=named)
def test_a_file_written_for_others_is_accepted_as_it_is(path: Path) -> None:
    loaded = load_paths([path], environ={})
    assert not loaded.failed
    assert loaded.documents
    doubts = {
        each.code for each in loaded.diagnostics
    }  # a key file, a variable, a key in plain text, orch.yml
    assert doubts <= {"ORCH151", "ORCH173", "ORCH132", "ORCH194"}


@cache
def diagnosed(path: Path) -> tuple[Diagnostic, ...]:
    launch = LAUNCH[0].parent in path.parents if LAUNCH else False
    untrusted = () if path in UNTRUSTED else None
    return load_paths([path], environ={}, secrets=SECRETS, launch=launch, untrusted=untrusted).diagnostics


@pytest.mark.parametrize("path", BAD + LAUNCH + UNTRUSTED, ids=named)
def test_a_mistake_is_pointed_at(path: Path) -> None:
    found = told(diagnosed(path))
    expected = path.with_suffix(".expected")
    if os.environ.get("ORCHCTL_TEST_ACCEPT"):
        expected.write_text(found)
    assert found.strip()
    assert found == expected.read_text()


@pytest.mark.parametrize("path", LAUNCH, ids=named)
def test_what_only_a_launch_refuses_is_valid(path: Path) -> None:
    assert not load_paths([path], environ={}).failed


@pytest.mark.parametrize("path", BAD, ids=named)
def test_no_word_of_the_libraries_underneath_reaches_the_reader(path: Path) -> None:
    found = told(diagnosed(path)).lower().replace("https://host/owner/name", "").replace("'http'", "")
    assert not [
        word for word in ("pydantic", "http", "value error", "input should", "nonetype") if word in found
    ]


def test_every_code_is_listed_and_shown_by_a_file() -> None:
    shown = {each.code for path in BAD + LAUNCH + UNTRUSTED for each in diagnosed(path)}
    # A missing file, a key file that others may read, and what only a huge file has (test_bounded.py).
    elsewhere = {"ORCH100", "ORCH152", "ORCH179"}
    beyond_files = {code for code in CODES if code >= "ORCH200"}  # the suites of what tells them
    assert shown | elsewhere | beyond_files == set(CODES)


def test_every_code_that_is_told_is_listed() -> None:
    root = HERE.parent.parent
    folders = (
        "spec",
        "offers",
        "policies",
        "components",
        "stacks",
        "runner",
        "providers",
        "catalog",
        "cli",
        "images",
    )
    sources = [path for folder in (*folders, "templates", "rehearsal") for path in (root / folder).rglob("*")]
    texts = [path.read_text("utf-8") for path in sources if path.suffix in (".py", ".j2", ".csv", ".yml")]
    assert sorted({code for text in texts for code in re.findall(r"ORCH\d{3}", text)} - set(CODES)) == []


def test_titles_are_sentences() -> None:
    for code, title in CODES.items():
        assert len(title.split()) >= 3, (code, title)
        assert title[0].isupper() or title[0] == "`" or title.startswith(("orch ", "sshd ")), (code, title)
        assert not title.endswith("."), (code, title)
    assert len(set(CODES.values())) == len(CODES)


def test_no_listed_code_is_told_by_nobody() -> None:
    root = HERE.parent.parent
    sources = (
        path
        for folder in (
            "spec",
            "offers",
            "policies",
            "components",
            "stacks",
            "runner",
            "providers",
            "catalog",
            "runbooks",
            "ci",
            "cli",
        )
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".csv", ".yml")
    )
    text = "".join(path.read_text("utf-8") for path in sources if path.name != "codes.py")
    by_row = {f"ORCH{number}" for number in range(364, 385)}  # the checks of a host, counted
    assert [code for code in CODES if code not in text and code not in by_row] == []


@pytest.mark.parametrize("path", BAD, ids=named)
def test_a_replacement_mends_its_mistake(path: Path, tmp_path: Path) -> None:
    for each in diagnosed(path):
        if each.replacement is None:
            continue
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
        span = each.span
        assert span.line == span.end_line
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + each.replacement + line[span.end_column - 1 :]
        mended = tmp_path / path.name
        mended.write_text("\n".join(lines))
        left = load_paths([mended], environ={}, secrets=SECRETS).diagnostics
        same = [
            other
            for other in left
            if (other.code, other.span.line, other.span.column) == (each.code, span.line, span.column)
        ]
        assert not same, each
