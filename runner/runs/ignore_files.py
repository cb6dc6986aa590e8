"""Which entries of a folder stay here: what ignore files say, in git's own way of reading them.

Three names are read in every folder, `.gitignore`, `.dstackignore` and `.orchignore`; of those in one folder
the later has the last word, and a deeper folder's has it before a higher one's. Those above the packed folder
count too, up to the checkout's or the project's root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

NAMES = (".gitignore", ".dstackignore", ".orchignore")
ALWAYS_WHY = {
    ".orch": "keys, states and the variables of runs are kept there",
    ".git": "its settings may hold credentials, and its history what was removed",
}
ALWAYS = frozenset(ALWAYS_WHY)
"""Never packed, whatever an ignore file says: keys, states, runs' variables; history and credentials."""


@dataclass(frozen=True)
class Rules:
    """What the ignore files of one folder say of all that lies below it."""

    folder: Path
    spec: GitIgnoreSpec

    def says(self, path: Path, *, is_folder: bool) -> bool | None:
        """True: left out; False: taken in again; None: nothing."""
        name = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(f"{name}/" if is_folder else name).include


def rules_of(folder: Path) -> Rules | None:
    """The rules that lie in a folder; None when there are none."""
    lines: list[str] = []
    for name in NAMES:
        try:
            lines += (folder / name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or no file
    return Rules(folder, GitIgnoreSpec.from_lines(lines)) if lines else None


def rules_above(folder: Path) -> tuple[Rules, ...]:
    """Those of the folders above, outermost first; no pattern that leaves out the folder: it was named."""
    if not any(_is_root(each) for each in (folder, *folder.parents)):
        return ()
    found: list[Rules] = []
    for each in () if _is_root(folder) else folder.parents:
        rules = rules_of(each)
        if rules is not None:
            found.insert(0, _for_named(rules, folder))
        if _is_root(each):
            break
    return tuple(found)


def left_out(path: Path, *, is_folder: bool, rules: Sequence[Rules]) -> bool:
    """Whether the rules, outermost first, leave an entry out."""
    for each in reversed(rules):
        said = each.says(path, is_folder=is_folder)
        if said is not None:
            return said
    return False


def _for_named(rules: Rules, folder: Path) -> Rules:
    """The rules without those patterns that leave out a folder below, or one that it lies in."""
    between = [each for each in (folder, *folder.parents) if each.is_relative_to(rules.folder)]
    names = [f"{each.relative_to(rules.folder).as_posix()}/" for each in between if each != rules.folder]
    kept = [
        pattern
        for pattern in rules.spec.patterns
        if not (pattern.include and any(pattern.match_file(name) for name in names))
    ]
    return Rules(rules.folder, GitIgnoreSpec(kept))


def _is_root(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", "orch.yml"))
