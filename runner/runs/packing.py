"""A task's `files` as one archive, and what is worth saying of it.

Which entries of a folder stay here is what ignore files say, in git's own way of reading them. Three names
are read in every folder, `.gitignore`, `.dstackignore` and `.orchignore`; of those in one folder the later
has the last word, and a deeper folder's has it before a higher one's. Those above the packed folder count
too, up to the checkout's or the project's root. What a task names itself is always packed.

In the container the copies belong to the job's own user. Modes are kept but for the group's: what others may
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

from pathspec import GitIgnoreSpec

from orch.runner.errors import BadTask
from orch.runner.launch.run_plan import StagedFile

SHOWN = 5
"""How many names a warning lists."""

_TYPES = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)


@dataclass(frozen=True)
class PackEntry:
    """One file, folder or link, and its place below what was named (`.` for that itself).

    `private`: others may not read it here, or a folder it lies in.
    """

    path: Path
    place: Path
    mode: int
    size: int
    private: bool


@dataclass
class PackSelection:
    """What is packed of one thing that a task names, and what stays here."""

    entries: list[PackEntry] = field(default_factory=list[PackEntry])
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


def choose(source: Path) -> PackSelection:
    """What of `source` is packed, in order of names. Raises BadTask for what is no file and no folder."""
    found = PackSelection()
    mode, size = _look(source)
    if stat.S_ISDIR(mode):
        found.entries.append(PackEntry(source, Path(), mode, 0, private=False))
        _walk(source, source, rules_above(source), found, private=_closed(mode))
    elif stat.S_ISREG(mode):
        found.entries.append(PackEntry(source, Path(), mode, size, private=_closed(mode)))
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


def _add(archive: tarfile.TarFile, index: int, entries: Iterable[PackEntry]) -> None:
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


def _walk(
    top: Path, folder: Path, above: Sequence[IgnoreRules], found: PackSelection, *, private: bool
) -> None:
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
        found.entries.append(PackEntry(path, place, mode, size, closed))
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


def _told(chosen: Sequence[PackSelection]) -> Iterator[str]:
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


NAMES = (".gitignore", ".dstackignore", ".orchignore")
ALWAYS_WHY = {
    ".orch": "keys, states and the variables of runs are kept there",
    ".git": "its settings may hold credentials, and its history what was removed",
}
ALWAYS = frozenset(ALWAYS_WHY)
"""Never packed, whatever an ignore file says: keys, states, runs' variables; history and credentials."""


@dataclass(frozen=True)
class IgnoreRules:
    """What the ignore files of one folder say of all that lies below it."""

    folder: Path
    spec: GitIgnoreSpec

    def says(self, path: Path, *, is_folder: bool) -> bool | None:
        """True: left out; False: taken in again; None: nothing."""
        name = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(f"{name}/" if is_folder else name).include


def rules_of(folder: Path) -> IgnoreRules | None:
    """The rules that lie in a folder; None when there are none."""
    lines: list[str] = []
    for name in NAMES:
        try:
            lines += (folder / name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or no file
    return IgnoreRules(folder, GitIgnoreSpec.from_lines(lines)) if lines else None


def rules_above(folder: Path) -> tuple[IgnoreRules, ...]:
    """Those of the folders above, outermost first; no pattern that leaves out the folder: it was named."""
    if not any(_is_root(each) for each in (folder, *folder.parents)):
        return ()
    found: list[IgnoreRules] = []
    for each in () if _is_root(folder) else folder.parents:
        rules = rules_of(each)
        if rules is not None:
            found.insert(0, _for_named(rules, folder))
        if _is_root(each):
            break
    return tuple(found)


def left_out(path: Path, *, is_folder: bool, rules: Sequence[IgnoreRules]) -> bool:
    """Whether the rules, outermost first, leave an entry out."""
    for each in reversed(rules):
        said = each.says(path, is_folder=is_folder)
        if said is not None:
            return said
    return False


def _for_named(rules: IgnoreRules, folder: Path) -> IgnoreRules:
    """The rules without those patterns that leave out a folder below, or one that it lies in."""
    between = [each for each in (folder, *folder.parents) if each.is_relative_to(rules.folder)]
    names = [f"{each.relative_to(rules.folder).as_posix()}/" for each in between if each != rules.folder]
    kept = [
        pattern
        for pattern in rules.spec.patterns
        if not (pattern.include and any(pattern.match_file(name) for name in names))
    ]
    return IgnoreRules(rules.folder, GitIgnoreSpec(kept))


def _is_root(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", "orch.yml"))
