"""Text of strangers in Markdown, read by GitHub's own parser (cmark-gfm): none of it is a link or a tag."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import given, settings
from hypothesis import strategies as st

from orch.review.escape import escape, escape_html, fenced

SCHEMES = ("http://", "https://", "HTTP://", "ftp://", "mailto:", "xmpp:", "irc://", "smb://", "www.", "WWW.")
BEFORE = ("", "1", "_", "x9", "中", "é", "a", "-", ".", "(", "*", "/", ":", "\u200b", "ß", "٣", "~", '"', "@")

PIECES = (
    *SCHEMES,
    *BEFORE,
    *("evil.example", "a@evil.example", "@ada", "@org/team", "#1", "GH-1", "gh-1", "o/r#1", "o/r@", "!7"),
    *("4f4f4f4", "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f", "1234567", "0a1b2c3d4e"),
    *("[x](http://e.x)", "![x](http://e.x/t.png)", "[x]: http://e.x", "[x][y]", "[^1]", "[^1]: x", "[", "]"),
    *("<http://e.x>", "<b>", "</td>", "<!--", "-->", "&#60;b&#62;", "&lt;", "&", "<details>", "&commat;ada"),
    *(
        "|",
        "\\|",
        "\\",
        "\\\\",
        "`",
        "``",
        "```",
        "~~~",
        "**",
        "__",
        "~~",
        "* ",
        "- ",
        "1. ",
        "> ",
        "# ",
        "    ",
    ),
    *(
        " ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\n\n",
        ":tada:",
        "$x$",
        "$$",
        "---",
        "===",
        "[ ]",
        "[x]",
        ":",
        "{",
        "%",
    ),
)

# What forges link in text: mentions, issues, commits. Their parsers find it in the text that Markdown made.
REFERENCES = (
    re.compile(r"@[A-Za-z0-9]"),
    re.compile(r"#[0-9]"),
    re.compile(r"(?i)gh-[0-9]"),
    re.compile(r"(?i)(?<![0-9a-z_-])[0-9a-f]{7,40}(?![0-9a-z_])"),
    re.compile(r"\w://|(?i:www\.)"),
    re.compile(r"[!~%^&][0-9A-Za-z]"),
)


class Seen(HTMLParser):
    """The tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        options = Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_FOOTNOTES
        self.feed(cmarkgfm.github_flavored_markdown_to_html(text, options=options))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")


def references(text: str) -> list[str]:
    return [found[0] for each in REFERENCES for found in each.finditer(text)]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_address_is_a_link_whatever_stands_before_it(before: str, scheme: str) -> None:
    """Also after a digit, an underscore or a letter beyond ASCII, where `\\b` sees no end of a word."""
    text = f"{before}{scheme}evil.example/x"
    seen = Seen(f"| a |\n|---|\n| {escape(text)} |\n")
    assert seen.tags == ["table", "thead", "tr", "th", "tbody", "tr", "td"]
    assert text.replace("\u200b", "<200b>") in seen.text.replace("\u200b", "")
    assert not references(seen.text)


@pytest.mark.parametrize(
    "text",
    ["a@evil.example", "é@evil.example", "_GH-12", "é4f4f4f4 4f4f4f4", "x o/r@4f4f4f4", "[feature_flag:1]"],
)
def test_no_reference_of_a_forge_is_left(text: str) -> None:
    seen = Seen(escape(text))
    assert seen.tags == ["p"]
    assert seen.text.strip().replace("\u200b", "") == text
    assert not references(seen.text)
    assert not re.search(r"\[[a-z_]+:", seen.text)


def test_commits_of_ours_and_ids_of_machines_stay_as_they_are() -> None:
    assert escape("i-0123456789abcdef0") == "i-0123456789abcdef0"
    assert escape("Plan of 4f4f4f4f4f4f", commits=("4f4f4f4f4f4f",)) == "Plan of 4f4f4f4f4f4f"
    assert escape("x", commits=("(",)) == "x"


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), min_size=4, max_size=4))
def test_nothing_of_a_text_by_chance_does_anything(texts: list[str]) -> None:
    heading, cell, item, code = texts
    document = [
        f"# A {escape(heading)}",
        "",
        "| a |",
        "|---|",
        f"| {escape(cell)} |",
        "",
        f"- {escape(item)}",
        "",
        f"<details><summary>{escape_html(heading)}</summary>",
        "",
        *fenced(code.split("\n"), "text"),
        "",
        "</details>",
        "",
        "end",
    ]
    seen = Seen("\n".join(document))
    table = ["table", "thead", "tr", "th", "tbody", "tr", "td"]
    assert seen.tags == ["h1", *table, "ul", "li", "details", "summary", "pre", "code", "p"]
    inside = "\n".join(fenced(code.split("\n"))[1:-1])
    outside = "".join(seen.text.rsplit(inside, 1)) if inside else seen.text
    assert not references(outside)
