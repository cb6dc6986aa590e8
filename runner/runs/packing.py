"""A task's `files` as one archive, with notes and warnings for the user.

Ignore files say which entries of a folder are not packed, with git's rules. Three names are read in every
folder: `.gitignore`, `.dstackignore` and `.orchignore`; a later name overrides an earlier one, and a deeper
folder overrides a higher one. Ignore files above the packed folder count too, up to the root of the checkout
or the project. A path that the task names itself is always packed.

In the container the copies belong to the job's user. Modes are kept, except the group's: an entry that others
may not read here is readable by its owner only there. Such entries travel in a second tree,
`files/N.private`, which is unpacked under umask 077. In the archive all entries belong to root and are
readable, for the job's user is unknown before the image is present, and nobody else on the node reaches it.
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
    """One file, folder or link. `relative_path` starts at the path in `files` (`.` for that path itself).

    `private`: others may not read it here, or a folder that it is in.
    """

    path: Path
    relative_path: Path
    mode: int
    size: int
    private: bool


@dataclass
class PackSelection:
    """The entries of one path in `files`, and what needs a note.

    `special_files` (pipes, sockets, devices) are not packed; `links_outside` lead out of the folder;
    `key_files` look like keys or credentials.
    """

    entries: list[PackEntry] = field(default_factory=list[PackEntry])
    ignored_count: int = 0
    special_files: list[Path] = field(default_factory=list[Path])
    links_outside: list[Path] = field(default_factory=list[Path])
    key_files: list[Path] = field(default_factory=list[Path])


def resolve_source(base: Path, path_text: str) -> Path:
    """The real path of a path in `files`, with links followed.

    Raises BadTask for a link that leads out of the task's own folder, and for a path in `.orch` or `.git`.
    """
    task_folder = Path(os.path.realpath(base))
    path = Path(os.path.normpath(task_folder / Path(path_text).expanduser()))
    real = Path(os.path.realpath(path))
    if path.is_relative_to(task_folder) and not real.is_relative_to(task_folder):
        raise BadTask(
            f"{path_text} is a symbolic link that leads out of the task's folder",
            detail=f"it leads to {real}",
            hint=f"to pack that, name it: `{real}:{path_text}`",
        )
    names = {part.lower() for part in (*path.parts, *real.parts)}
    for excluded in sorted(ALWAYS & names):
        raise BadTask(
            f"{path_text} lies in `{excluded}` and is never packed",
            detail=ALWAYS_WHY[excluded],
            hint="copy what you need to another folder first",
        )
    return real


def select_entries(source: Path) -> PackSelection:
    """The entries of `source` to pack, sorted by name. Raises BadTask for neither a file nor a folder."""
    selection = PackSelection()
    mode, size = _mode_and_size(source)
    if stat.S_ISDIR(mode):
        selection.entries.append(PackEntry(source, Path(), mode, 0, private=False))
        _walk(source, source, rules_of_parents(source), selection, private=_is_private(mode))
    elif stat.S_ISREG(mode):
        selection.entries.append(PackEntry(source, Path(), mode, size, private=_is_private(mode)))
    else:
        raise BadTask(f"{source} is no file and no folder", hint="`files` takes files and folders")
    return selection


def pack(files: Sequence[StagedFile], target: Path) -> tuple[str, ...]:
    """Write the archive with mode 0600. Returns `LEVEL: TEXT` lines for the user: a summary, then warnings.

    Raises BadTask for an entry that cannot be read, OSError when the archive cannot be written.
    """
    selections = [select_entries(Path(item.source)) for item in files]
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        os.fdopen(descriptor, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for index, each in enumerate(selections):
            _add(archive, index, each.entries)
    return tuple(_messages(selections))


def _add(archive: tarfile.TarFile, index: int, entries: Iterable[PackEntry]) -> None:
    for entry in entries:
        tree = Path(
            f"files/{index}.private" if entry.private and entry.relative_path.parts else f"files/{index}"
        )
        try:
            member = archive.gettarinfo(entry.path, str(tree / entry.relative_path))
            if not entry.relative_path.parts and (member.isdir() or entry.private):
                archive.addfile(_folder(f"files/{index}.private"))
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mode = _archive_mode(member.mode, folder=member.isdir())
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
    top: Path, folder: Path, above: Sequence[IgnoreRules], selection: PackSelection, *, private: bool
) -> None:
    own = read_rules(folder)
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
        mode, size = _mode_and_size(path)
        if is_ignored(path, is_folder=stat.S_ISDIR(mode), rules=rules):
            selection.ignored_count += 1
            continue
        relative_path = path.relative_to(top)
        if not any(kind(mode) for kind in _TYPES):
            selection.special_files.append(relative_path)
            continue
        is_private = private or (_is_private(mode) and not stat.S_ISLNK(mode))
        selection.entries.append(PackEntry(path, relative_path, mode, size, is_private))
        if stat.S_ISDIR(mode):
            _walk(top, path, rules, selection, private=is_private)
        elif stat.S_ISLNK(mode):
            if not _is_inside(path, top):
                selection.links_outside.append(relative_path)
        elif looks_like_a_key(path, size):
            selection.key_files.append(relative_path)


def _mode_and_size(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_mode, found.st_size


def _is_private(mode: int) -> bool:
    """Whether others may not read a file, or not list and enter a folder."""
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed != needed


def _archive_mode(mode: int, *, folder: bool) -> int:
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


def _is_inside(link: Path, top: Path) -> bool:
    return not os.path.isabs(os.readlink(link)) and Path(os.path.realpath(link)).is_relative_to(top)


def _messages(selections: Sequence[PackSelection]) -> Iterator[str]:
    files = [entry for each in selections for entry in each.entries if stat.S_ISREG(entry.mode)]
    ignored_count = sum(each.ignored_count for each in selections)
    ignored_text = (
        f"; {ignored_count} entries stay here by {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        if ignored_count
        else ""
    )
    yield (
        f"note: packed {len(files)} file{'' if len(files) == 1 else 's'}, "
        f"{_bytes(sum(entry.size for entry in files))}{ignored_text}"
    )
    if names := [str(name) for each in selections for name in each.key_files]:
        yield (
            f"warning: {_some(names)} looks like a key or credentials and goes to every node; "
            "if the job does not need it, name it in .orchignore"
        )
    if names := [str(name) for each in selections for name in each.links_outside]:
        yield (
            f"warning: {_some(names)} leads out of its folder: "
            "packed as the link it is, without what it leads to"
        )
    if names := [str(name) for each in selections for name in each.special_files]:
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
    """Whether a file of `size` bytes looks like a private key or credentials; False when unreadable."""
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
    """The rules of one folder's ignore files, for all paths below it."""

    folder: Path
    spec: GitIgnoreSpec

    def excludes(self, path: Path, *, is_folder: bool) -> bool | None:
        """True: ignored; False: included again; None: no rule matches."""
        name = path.relative_to(self.folder).as_posix()
        return self.spec.check_file(f"{name}/" if is_folder else name).include


def read_rules(folder: Path) -> IgnoreRules | None:
    """The rules of a folder's own ignore files; None when it has none."""
    lines: list[str] = []
    for name in NAMES:
        try:
            lines += (folder / name).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or no file
    return IgnoreRules(folder, GitIgnoreSpec.from_lines(lines)) if lines else None


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


def is_ignored(path: Path, *, is_folder: bool, rules: Sequence[IgnoreRules]) -> bool:
    """Whether an entry is ignored by the rules, outermost first."""
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
    return IgnoreRules(rules.folder, GitIgnoreSpec(kept))


def _is_root(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", "orch.yml"))
