"""Text of users made harmless for Markdown and Mermaid: it shows as it is, and does nothing.

GitHub and GitLab look for mentions, issues and links in the text that Markdown has become, where an entity
is a letter like any other. So what begins one is followed by a zero-width space, as Renovate's comments
have it.
"""

from __future__ import annotations

import re

from orch.spec.errors import visible

_APART = "&#8203;"
_CHARACTERS = {
    "&": f"&amp;{_APART}",  # which else begins an epic of GitLab
    "<": "&lt;",
    ">": "&gt;",
    "$": "&#36;",  # which else begins a formula
    **{each: f"\\{each}" for each in "\\`*_[]|"},
    **{each: f"{each}{_APART}" for each in "@#!~%^"},
}
_LINKS = re.compile(
    r"(?i)(\b(?:https?|ftp|mailto|xmpp)):|\b(www)\.|\b(GH)-(?=\d)"
    # An emoji: `:tada:`, and the line in `p5.yml:100:3`.
    r"|(?<=:)(?:[a-z+-](?=[a-z0-9_+-]*:)|[18](?=(?:00|234|ball):))"
)
_LONGEST = 200
_MERMAID = re.compile(r"[^A-Za-z0-9 ,.:+/()\[\]-]")


def escape(text: str, most: int | None = None) -> str:
    """The text on one line of Markdown, also within a cell of a table. `most`: of it in UTF-8 bytes; what
    is longer ends with an ellipsis."""
    if most is not None:
        text = text[:most]  # each character is a byte at least
    parts: list[str] = []
    size = 0
    for part in _parts(visible(" ".join(text.split("\n")))):
        size += len(part.encode())
        if most is not None and size > most - len("…".encode()):
            return "".join(parts).rstrip() + "…"
        parts.append(part)
    return "".join(parts)


def escape_html(text: str) -> str:
    """The text on one line of HTML within Markdown, where a backslash is a letter."""
    return "".join(
        part.removeprefix("\\") if len(part) > 1 else part
        for part in _parts(visible(" ".join(text.split("\n"))))
    ).replace("&#36;", "$")


def fenced(lines: list[str], language: str = "") -> list[str]:
    """Lines as a block of code: its fence is longer than any run of backticks within."""
    shown = [visible(line) for line in lines]
    runs = (len(run) for line in shown for run in re.findall(r"`+", line))
    fence = "`" * max(3, max(runs, default=0) + 1)
    return [f"{fence}{language}", *shown, fence]


def marked(text: str) -> str:
    """A value within an HTML comment: it cannot end the comment, nor look like another value of it."""
    text = text[:_LONGEST]
    return re.sub(
        r"[^A-Za-z0-9._/-]|--+", lambda match: "".join(f"%{each:02X}" for each in match[0].encode()), text
    )


def mermaid(text: str) -> str:
    """The text within a quoted label of Mermaid, which knows entities as `#35;`."""
    return _MERMAID.sub(lambda match: f"#{ord(match[0])};", visible(text))


def _parts(text: str) -> list[str]:
    """The characters, each as Markdown that shows it; what would begin a link is kept apart."""
    parts: list[str] = []
    at = 0
    for match in _LINKS.finditer(text):
        parts += [_CHARACTERS.get(each, each) for each in text[at : match.end() - 1]]
        parts.append(f"{_APART}{text[match.end() - 1]}")
        at = match.end()
    return [*parts, *(_CHARACTERS.get(each, each) for each in text[at:])]
