"""Text of users made harmless for Markdown and Mermaid: it shows as it is, and does nothing.

GitHub and GitLab look for mentions, issues and links in the text that Markdown has become, where an entity
is a letter like any other. So what begins one is followed by a zero-width space, as Renovate's comments
have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orch.spec.errors import visible

_APART = "&#8203;"
_CHARACTERS = {
    "&": f"&amp;{_APART}",  # which else begins an epic of GitLab
    "<": "&lt;",
    ">": "&gt;",
    "$": "&#36;",  # which else begins a formula
    **{each: f"\\{each}" for each in "\\`*_[]|"},
    **{each: f"{each}{_APART}" for each in "@#!%^"},
    "~": f"\\~{_APART}",  # one on each side strikes out
}
_BREAKS = re.compile(
    # A link begins with a scheme or `www.` after any character: parsers ask for no end of a word before it.
    r"(?i)(?<=http)(?=:)|(?<=https)(?=:)|(?<=ftp)(?=:)|(?<=mailto)(?=:)|(?<=xmpp)(?=:)|(?=://)|(?<=www)(?=\.)"
    r"|(?<=GH)(?=-[0-9])"
    # What GitLab links in brackets, as `[feature_flag:1]`.
    r"|(?<=\[)(?=[a-z_]+:)"
    # An emoji: `:tada:`, and the line in `p5.yml:100:3`.
    r"|(?<=:)(?=[a-z+-][a-z0-9_+-]*:|100:|1234:|8ball:)"
)
"""The places where a link of GitHub's or GitLab's would begin without `_CHARACTERS`."""
_HASH = re.compile(r"(?i)(?<![0-9a-z_-])[0-9a-f]{7,40}(?![0-9a-z_])")
"""What may be a commit. An id like `i-0123456789abcdef0` stays as it is."""
_BLOCK = re.compile(r"([0-9]{0,9})([-+](?= |$)|-[- ]*-$|=+$|(?<=[0-9])[.)](?= |$))")
"""The beginning of a list, a line across the page, or what makes a heading of the line above."""
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LONGEST = 200
_MERMAID = re.compile(r"[^A-Za-z0-9 ,.:+/()\[\]-]")


def escape(text: str, most: int | None = None, commits: Iterable[str] = ()) -> str:
    """Return the text on one line of Markdown, also for a cell of a table.

    Spaces around it are left out: four would begin a block of code. `most`: of it in UTF-8 bytes; what is
    longer ends with an ellipsis. `commits`: those of ours, which forges may link.
    """
    if most is not None:
        text = text[:most]  # each character is a byte at least
    parts: list[str] = []
    size = 0
    for part in _parts(visible(" ".join(text.split("\n"))).strip(), commits):
        size += len(part.encode())
        if most is not None and size > most - len("…".encode()):
            return "".join(parts).rstrip() + "…"
        parts.append(part)
    return "".join(parts)


def escape_html(text: str) -> str:
    """The text on one line of HTML within Markdown, where a backslash is a letter."""
    return "".join(
        re.sub(r"\\(.)", r"\1", part) for part in _parts(visible(" ".join(text.split("\n"))))
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


def _parts(text: str, commits: Iterable[str] = ()) -> list[str]:
    """Return the characters, each as Markdown that shows it; what would begin a link is kept apart."""
    apart = {match.start() for match in _BREAKS.finditer(text)}
    apart |= {at for match in _HASH.finditer(text) for at in range(match.start() + 6, match.end(), 6)}
    for commit in filter(_COMMIT.fullmatch, commits):
        apart -= {at for match in re.finditer(commit, text) for at in range(*match.span())}
    block = _BLOCK.match(text)
    parts = [f"{_APART if at in apart else ''}{_CHARACTERS.get(each, each)}" for at, each in enumerate(text)]
    if block:
        parts[block.end(1)] = f"\\{parts[block.end(1)]}"
    return parts
