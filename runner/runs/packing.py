"""A task's `files` as one archive, and what is worth saying of it.

Entries of a folder are chosen by `ignoring.py`; what a task names itself is always packed. In the
container the copies belong to the job's own user. Modes are kept but for the group's: what others may
not read here is its owner's alone there. Such entries travel in a second tree, `files/N.private`,
copied under umask 077; in the archive all is root's and readable, for the job's user is not known
before its image is there, and on a node nobody else reaches it.
"""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orch.runner.errors import BadTask
from orch.runner.launch.run_plan import StagedFile
from orch.runner.runs.ignore_files import ALWAYS, ALWAYS_WHY, NAMES, Rules, left_out, rules_above, rules_of

SHOWN = 5
"""How many names a warning lists."""

_TYPES = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)


@dataclass(frozen=True)
class Entry:
    """One file, folder or link, and its place below what was named (`.` for that itself).

    `private`: others may not read it here, or a folder it lies in.
    """

    path: Path
    place: Path
    mode: int
    size: int
    private: bool


@dataclass
class Chosen:
    """What is packed of one thing that a task names, and what stays here."""

    entries: list[Entry] = field(default_factory=list[Entry])
    ignored: int = 0
    odd: list[Path] = field(default_factory=list[Path])
    outside: list[Path] = field(default_factory=list[Path])
    keys: list[Path] = field(default_factory=list[Path])


def source_of(base: Path, written: str) -> Path:
    """What a task means by a path in `files`, links followed.

    Raises BadTask for a link that leads out of the task's own folder, and for what lies in `.orch` or
    `.git`.
    """
    here = Path(os.path.realpath(base))
    named = Path(os.path.normpath(here / Path(written).expanduser()))
    real = Path(os.path.realpath(named))
    if named.is_relative_to(here) and not real.is_relative_to(here):
        raise BadTask(
            f"{written} is a symbolic link that leads out of the task's folder",
            detail=f"it leads to {real}",
            hint=f"to pack that, name it: `{real}:{written}`",
        )
    names = {part.lower() for path in (named, real) for part in path.parts}
    for never in sorted(ALWAYS & names):
        raise BadTask(
            f"{written} lies in `{never}` and is never packed",
            detail=ALWAYS_WHY[never],
            hint="copy what you need to another folder first",
        )
    return real


def choose(source: Path) -> Chosen:
    """What of `source` is packed, in order of names. Raises BadTask for what is no file and no folder."""
    found = Chosen()
    mode, size = _look(source)
    if stat.S_ISDIR(mode):
        found.entries.append(Entry(source, Path(), mode, 0, private=False))
        _walk(source, source, rules_above(source), found, private=_closed(mode))
    elif stat.S_ISREG(mode):
        found.entries.append(Entry(source, Path(), mode, size, private=_closed(mode)))
    else:
        raise BadTask(f"{source} is no file and no folder", hint="`files` takes files and folders")
    return found


def pack(files: Sequence[StagedFile], target: Path) -> tuple[str, ...]:
    """Write the archive, which is its owner's alone; what is to be said of it, the first line always.

    Raises BadTask for what cannot be read, OSError when the archive cannot be written.
    """
    chosen = [choose(Path(item.source)) for item in files]
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(descriptor, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for index, each in enumerate(chosen):
            _add(archive, index, each.entries)
    return tuple(_told(chosen))


def _add(archive: tarfile.TarFile, index: int, entries: Iterable[Entry]) -> None:
    for entry in entries:
        tree = Path(f"files/{index}.private" if entry.private and entry.place.parts else f"files/{index}")
        try:
            member = archive.gettarinfo(entry.path, str(tree / entry.place))
            if not entry.place.parts and (member.isdir() or entry.private):
                archive.addfile(_folder(f"files/{index}.private"))
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mode = _staged(member.mode, folder=member.isdir())
            if member.isreg():
                with entry.path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)
        except OSError as error:
            if error.filename is None and not str(error).startswith("unexpected end"):
                raise
            raise BadTask(
                f"{entry.path} cannot be packed",
                detail=error.strerror or str(error),
                hint="make it readable, leave it as it is while it is packed, or name it in .orchignore",
            ) from error


def _walk(top: Path, folder: Path, above: Sequence[Rules], found: Chosen, *, private: bool) -> None:
    own = rules_of(folder)
    rules = (*above, own) if own is not None else above
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadTask(
            f"{folder} cannot be packed",
            detail=error.strerror or str(error),
            hint="make it readable, or name it in .orchignore",
        ) from error
    for name in names:
        path = folder / name
        if name.lower() in ALWAYS:
            continue
        mode, size = _look(path)
        if left_out(path, is_folder=stat.S_ISDIR(mode), rules=rules):
            found.ignored += 1
            continue
        place = path.relative_to(top)
        if not any(kind(mode) for kind in _TYPES):
            found.odd.append(place)
            continue
        closed = private or (_closed(mode) and not stat.S_ISLNK(mode))
        found.entries.append(Entry(path, place, mode, size, closed))
        if stat.S_ISDIR(mode):
            _walk(top, path, rules, found, private=closed)
        elif stat.S_ISLNK(mode):
            if not _leads_within(path, top):
                found.outside.append(place)
        elif looks_like_a_key(path, size):
            found.keys.append(place)


def _look(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_mode, found.st_size


def _closed(mode: int) -> bool:
    """Whether others may not read it; of a folder, list and enter it."""
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed != needed


def _staged(mode: int, *, folder: bool) -> int:
    """Readable by all, and run by all where its owner runs it; without the bits that lend rights.

    A folder is its owner's to write: what is private in it is copied there later.
    """
    mode &= 0o777
    if folder:
        return mode | 0o755
    return mode | (0o555 if mode & stat.S_IXUSR else 0o444)


def _folder(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    return member


def _leads_within(link: Path, top: Path) -> bool:
    return not os.path.isabs(os.readlink(link)) and Path(os.path.realpath(link)).is_relative_to(top)


def _told(chosen: Sequence[Chosen]) -> Iterator[str]:
    files = [entry for each in chosen for entry in each.entries if stat.S_ISREG(entry.mode)]
    ignored = sum(each.ignored for each in chosen)
    left = f"; {ignored} entries stay here by {', '.join(NAMES[:-1])} or {NAMES[-1]}" if ignored else ""
    yield (
        f"note: packed {len(files)} file{'' if len(files) == 1 else 's'}, "
        f"{_bytes(sum(entry.size for entry in files))}{left}"
    )
    if names := [str(name) for each in chosen for name in each.keys]:
        yield (
            f"warning: {_some(names)} looks like a key or credentials and goes to every node; "
            "if the job does not need it, name it in .orchignore"
        )
    if names := [str(name) for each in chosen for name in each.outside]:
        yield (
            f"warning: {_some(names)} leads out of its folder: "
            "packed as the link it is, without what it leads to"
        )
    if names := [str(name) for each in chosen for name in each.odd]:
        yield f"warning: {_some(names)} is a pipe, a socket or a device and stays here"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _bytes(size: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


_NAMES = re.compile(
    r"""
      \.env(\.(?!example$|sample$|template$|dist$).+)?
    | id_(rsa|dsa|ecdsa|ed25519)(_sk)? | .+\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk)
    | [._]netrc | \.pgpass | \.pypirc | \.npmrc | \.git-credentials | \.htpasswd | \.dockercfg
    | credentials(\.json)? | client_secret.*\.json | service[_-]?account.*\.json | kubeconfig
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONTENTS = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File|\"private_key\"\s*:\s*\"-----"
)

LARGEST = 1 << 16
"""No key is larger, in bytes."""

_READ = 4096


def looks_like_a_key(path: Path, size: int) -> bool:
    """Whether a file of `size` bytes does. One that cannot be read does not."""
    if _NAMES.fullmatch(path.name):
        return not path.name.lower().endswith(".pub.pem")
    if size > LARGEST:
        return False
    try:
        with path.open("rb") as stream:
            return bool(_CONTENTS.search(stream.read(_READ)))
    except OSError:
        return False
