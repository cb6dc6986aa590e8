"""Ignore files: which entries of a folder stay on the submitting machine, with git's rules.

Three names are read in every folder: `.gitignore`, `.dstackignore` and `.orchignore`; a later name overrides
an earlier one, and a deeper folder overrides a higher one. Ignore files above the folder count too, up to the
root of the checkout or the project. A path that the task names itself is always sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NAMES = (".gitignore", ".dstackignore", ".orchignore")


@dataclass(frozen=True)
class IgnoreRules:
    """The rules of one folder's ignore files, for all paths below it."""

    folder: Path
    spec: GitIgnoreSpec

    def excludes(self, path: str, *, is_folder: bool) -> bool | None:
        """True: ignored; False: included again; None: no rule matches."""
        name = path[len(str(self.folder).rstrip("/")) + 1 :]
        return self.spec.check_file(f"{name}/" if is_folder else name).include


def read_rules(folder: Path) -> IgnoreRules | None:
    """The rules of a folder's own ignore files; None when it has none."""
    lines: list[str] = []
    for name in NAMES:
        try:
            lines += (folder / name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or no file
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    return IgnoreRules(folder, GitIgnoreSpec.from_lines(lines))


def rules_of_parents(folder: Path) -> tuple[IgnoreRules, ...]:
    """The rules of the folders above, outermost first, without patterns that ignore `folder` itself."""
    if not any(_is_root(each) for each in (folder, *folder.parents)):
        return ()
    all_rules: list[IgnoreRules] = []
    for each in () if _is_root(folder) else folder.parents:
        rules = read_rules(each)
        if rules is not None:
            all_rules.insert(0, _for_named(rules, folder))
        if _is_root(each):
            break
    return tuple(all_rules)


def is_ignored(path: str, *, is_folder: bool, rules: Sequence[IgnoreRules]) -> bool:
    """Whether an entry, by its whole path, is ignored by the rules, outermost first."""
    for each in reversed(rules):
        verdict = each.excludes(path, is_folder=is_folder)
        if verdict is not None:
            return verdict
    return False


def _for_named(rules: IgnoreRules, folder: Path) -> IgnoreRules:
    """The rules without the patterns that ignore `folder`, or a folder that contains it."""
    between = [each for each in (folder, *folder.parents) if each.is_relative_to(rules.folder)]
    names = [f"{each.relative_to(rules.folder).as_posix()}/" for each in between if each != rules.folder]
    kept = [
        pattern
        for pattern in rules.spec.patterns
        if not (pattern.include and any(pattern.match_file(name) for name in names))
    ]
    return IgnoreRules(rules.folder, type(rules.spec)(kept))


def _is_root(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", "orch.yml"))
