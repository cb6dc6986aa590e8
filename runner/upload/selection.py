"""Which entries of the paths in `files` go to the nodes, and what a user should know of them.

`ignore_files` says what stays here; a path that the task names itself always goes. In the container the
copies belong to the job's user. Modes are kept, except the group's: an entry that others may not read here is
readable by its owner only there. On the way and on the node all entries belong to root and are readable, for
the job's user is unknown before the image is present, and nobody else on the node reaches them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orch.runner.errors import BadTask
from orch.runner.launch.files import ALWAYS, Source
from orch.runner.upload.ignore_files import NAMES, IgnoreRules, is_ignored, read_rules, rules_of_parents
from orch.runner.upload.tree import FILE

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SHOWN = 5
"""How many names a warning lists."""
NOTE_ABOVE = 200 * 1000 * 1000
"""Bytes above which a user is told that much goes to every node."""


@dataclass(frozen=True, slots=True)
class SelectedEntry:
    """One file, folder or link of this machine and where it goes in its tree.

    `private`: others may not read it here, or a folder that it is in. `named`: the task itself names it.
    """

    source: str
    path: str
    status: os.stat_result
    private: bool
    named: bool = False

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


@dataclass
class Selection:
    """The entries of one path in `files`, and what needs a note.

    `special_files` (pipes, sockets, devices) stay here; `key_files` look like keys or credentials.
    """

    entries: list[SelectedEntry] = field(default_factory=list[SelectedEntry])
    ignored_count: int = 0
    special_files: list[str] = field(default_factory=list[str])
    key_files: list[str] = field(default_factory=list[str])
    links_outside: list[str] = field(default_factory=list[str])


def select_entries(source: Source) -> Selection:
    """The entries of `source`, sorted by name.

    Raises BadTask for neither a file nor a folder, for a symbolic link that leads out of the folder, and for
    a pattern that matches nothing.
    """
    selection = Selection()
    top = str(source.path)
    status = os.lstat(top)
    if stat.S_ISDIR(status.st_mode):
        from pathspec import GitIgnoreSpec

        wanted = GitIgnoreSpec.from_lines([f"/{source.pattern}"]) if source.pattern else None
        selection.entries.append(SelectedEntry(top, "", status, private=False))
        rules = rules_of_parents(source.path)
        _walk(top, "", rules, wanted, selection, private=is_private(status.st_mode))
        if wanted is not None:
            _keep_matches(source, wanted, selection)
    elif stat.S_ISREG(status.st_mode):
        private = is_private(status.st_mode)
        selection.entries.append(SelectedEntry(top, FILE, status, private, named=True))
    else:
        raise BadTask(f"{top} is no file and no folder", hint="`files` takes files and folders")
    if selection.links_outside:
        raise BadTask(
            f"{some(selection.links_outside)} in {top} leads out of that folder",
            detail="a symbolic link is sent as it is, and on the node it would lead to something else",
            hint="name it in .orchignore, or name what it leads to in `files`",
        )
    return selection


def _walk(
    top: str,
    relative: str,
    above: Sequence[IgnoreRules],
    wanted: GitIgnoreSpec | None,
    selection: Selection,
    *,
    private: bool,
) -> None:
    folder = os.path.join(top, relative) if relative else top
    own = read_rules(Path(folder))
    rules = (*above, own) if own is not None else above
    try:
        with os.scandir(folder) as listed:
            found = sorted(listed, key=lambda each: each.name)
        statuses = [each.stat(follow_symlinks=False) for each in found]
    except OSError as error:
        raise BadTask(
            f"{folder} cannot be packed",
            detail=error.strerror or str(error),
            hint="make it readable, or name it in .orchignore",
        ) from error
    for each, status in zip(found, statuses, strict=True):
        if each.name.lower() in ALWAYS:
            continue
        mode = status.st_mode
        path = f"{relative}/{each.name}" if relative else each.name
        if is_ignored(each.path, is_folder=stat.S_ISDIR(mode), rules=rules):
            selection.ignored_count += 1
            continue
        if wanted is not None and not stat.S_ISDIR(mode) and not wanted.match_file(path):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            selection.special_files.append(path)
            continue
        closed = private or (is_private(mode) and not stat.S_ISLNK(mode))
        selection.entries.append(SelectedEntry(each.path, path, status, closed))
        if stat.S_ISDIR(mode):
            _walk(top, path, rules, wanted, selection, private=closed)
        elif stat.S_ISLNK(mode) and not _is_inside(each.path, top):
            selection.links_outside.append(path)


def _keep_matches(source: Source, wanted: GitIgnoreSpec, selection: Selection) -> None:
    """Leave out folders that hold no match. Raises BadTask when nothing matches."""
    kept: set[str] = {""}
    for entry in selection.entries:
        if (not stat.S_ISDIR(entry.status.st_mode)) or (entry.path and wanted.match_file(f"{entry.path}/")):
            parts = entry.path.split("/")
            kept |= {"/".join(parts[:length]) for length in range(1, len(parts) + 1)}
    selection.entries = [entry for entry in selection.entries if entry.path in kept]
    selection.ignored_count = 0  # of all that lies there, most was not asked for
    if len(selection.entries) == 1:
        raise BadTask(
            f"nothing in {source.path} matches {source.pattern}",
            hint="`*` stands for any letters but `/`, `**` for any folders",
        )


def is_private(mode: int) -> bool:
    """Whether others may not read a file, or not list and enter a folder."""
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed != needed


def sent_mode(mode: int) -> int:
    """Readable by all, and run by all where its owner runs it; without the bits that lend rights.

    A folder is its owner's to write: what is private in it is copied there later.
    """
    if stat.S_ISLNK(mode):
        return 0o777
    if stat.S_ISDIR(mode):
        return mode & 0o777 | 0o755
    return mode & 0o777 | (0o555 if mode & stat.S_IXUSR else 0o444)


def _is_inside(link: str, top: str) -> bool:
    return not os.path.isabs(os.readlink(link)) and Path(os.path.realpath(link)).is_relative_to(top)


def messages(selections: Sequence[Selection], more_keys: Iterable[str] = ()) -> Iterator[str]:
    """`LEVEL: TEXT` lines for the user: a summary, then warnings. `more_keys`: paths whose text is a key."""
    files = [entry for each in selections for entry in each.entries if entry.is_file]
    size = sum(entry.status.st_size for entry in files)
    ignored_count = sum(each.ignored_count for each in selections)
    ignored_text = (
        f"; {ignored_count} entries stay here by {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        if ignored_count
        else ""
    )
    yield f"note: packed {len(files)} file{'' if len(files) == 1 else 's'}, {bytes_text(size)}{ignored_text}"
    if size > NOTE_ABOVE:
        yield (
            f"note: {bytes_text(size)} go to every node, only once while they stay as they are; "
            "a volume or a mount is for larger data"
        )
    keys = [entry.path for entry in files if not entry.named and name_of_a_key(os.path.basename(entry.path))]
    if names := sorted({*keys, *more_keys}):
        yield (
            f"warning: {some(names)} looks like a key or credentials and goes to every node; "
            "if the job does not need it, name it in .orchignore"
        )
    if names := [name for each in selections for name in each.special_files]:
        yield f"warning: {some(names)} is a pipe, a socket or a device and stays here"


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def bytes_text(size: float) -> str:
    """`1.5 KB`: decimal units, as disks are sold."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


_NAMES = re.compile(
    r"""
      \.env(\.(?!example$|sample$|template$|dist$).+)?
    | .+\.(p12|pfx|jks|keystore|kdbx)
    | [._]netrc | \.pgpass | \.pypirc | \.npmrc | \.git-credentials | \.htpasswd | \.dockercfg
    | credentials(\.json)? | client_secret.*\.json | service[_-]?account.*\.json | kubeconfig
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONTENTS = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File|\"private_key\"\s*:\s*\"-----"
    # DER (RFC 5208, 8017, 5915): a sequence of a version, and an algorithm, a number or the key itself.
    rb"|\A\x30(?:[\x00-\x7f]|\x81.|\x82..)\x02\x01(?:\x00[\x02\x30]|\x01\x04)",
    re.DOTALL,
)

KEY_SIZE = 1 << 16
"""No key is larger, in bytes."""
KEY_HEAD = 4096
"""A key begins within so many bytes of its file."""


def name_of_a_key(name: str) -> bool:
    """Whether files of this name hold private keys or credentials, whatever they look like inside."""
    return bool(_NAMES.fullmatch(name))


def text_of_a_key(head: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins with `head` holds a private key."""
    return size <= KEY_SIZE and bool(_CONTENTS.search(head[:KEY_HEAD]))
