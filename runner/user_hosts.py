"""The hosts of runs in the user's own SSH configuration.

Each host has a file in `~/.ssh/orch/`. `~/.ssh/config` itself gets one line, an `Include` of
that folder, and is never written again. Any number of processes may add and remove hosts at the same time.
"""

from __future__ import annotations

import fcntl
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from orch.runner.errors import RunnerError
from orch.runner.ledger.run_folder import RunFolder
from orch.runner.private import private_file, private_folder, stage_file, write_private

_OWNER = "# Written by orch, removed when the run ends: "
# How often a configuration that changes while it is read is read again.
_TRIES = 5


class HostNotAdded(RunnerError):
    """The user's SSH configuration cannot have the host."""


def add_host(names: Sequence[str], owner: Path, text: str) -> Path | None:
    """Make `names` known to `ssh` by `text`, which stands under the first of them.

    `owner` is the folder of the run that they are of. Gives the folder of another run that had the name
    until now. Raises HostNotAdded, where the user has such a host, or files cannot be written.
    """
    try:
        home = Path.home() / ".ssh"
        folder = private_folder(home / "orch")
        with _locked(folder):
            _prune(folder)
            config = home / "config"
            taken = sorted(set(names) & _hosts(_content(config)))
            if taken:
                raise HostNotAdded(
                    f"{config} has a host {taken[0]} of its own", hint="give the run another name"
                )
            _include(config, folder)
            former = _owner(folder / names[0])
            write_private(folder / names[0], f"{_OWNER}{owner}\n{text}")
    except (OSError, RuntimeError) as error:  # the latter: nobody knows where home is
        raise HostNotAdded(
            "your SSH configuration cannot be written", where="~/.ssh", detail=str(error)
        ) from error
    return former if former not in (None, owner) else None


def remove_host(name: str, owner: Path) -> None:
    """Remove what `add_host` wrote for this owner; another one's stays. What cannot be removed stays too."""
    with suppress(OSError, RuntimeError):
        folder = Path.home() / ".ssh" / "orch"
        if not folder.is_dir():
            return
        with _locked(folder):
            if _owner(folder / name) == owner:
                (folder / name).unlink()
            _prune(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with private_file(folder / ".lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _owner(file: Path) -> Path | None:
    try:
        first = file.read_text().partition("\n")[0]
    except FileNotFoundError:
        return None
    return Path(first.removeprefix(_OWNER)) if first.startswith(_OWNER) else None


def _prune(folder: Path) -> None:
    """Remove hosts of runs whose folders are gone."""
    for file in folder.glob("[!.]*"):
        owner = _owner(file)
        if owner is not None and not owner.is_dir():
            file.unlink()


def _content(config: Path) -> bytes:
    try:
        return config.read_bytes()
    except FileNotFoundError:
        return b""


def _words(line: bytes) -> tuple[str, list[str]]:
    """A keyword of `ssh_config` in lower case, and its arguments."""
    keyword, _, rest = line.decode(errors="replace").strip().replace("=", " ", 1).partition(" ")
    try:
        return keyword.lower(), shlex.split(rest, comments=True)
    except ValueError:  # quotes that do not end: `ssh` refuses the line too
        return keyword.lower(), rest.split()


def _hosts(content: bytes) -> set[str]:
    """Names of `Host` lines. A pattern is none: it says something of many hosts, and of ours too."""
    lines = map(_words, content.splitlines())
    return {name for keyword, names in lines if keyword == "host" for name in names}


def _include(config: Path, folder: Path) -> None:
    """Begin the configuration with an `Include` of the folder, where none counts for all hosts."""
    ours = f"{folder}/*"
    for _ in range(_TRIES):
        content = _content(config)
        for keyword, arguments in map(_words, content.splitlines()):
            if keyword in ("host", "match"):
                break
            if keyword == "include" and {ours, "orch/*", "~/.ssh/orch/*"} & set(arguments):
                return
        line = f'Include "{ours}"\n\n' if " " in ours else f"Include {ours}\n\n"
        target = config.resolve()  # a link leads to where the user keeps it
        staged = stage_file(target, line.encode() + content)
        try:
            if target.exists():
                status = target.stat()
                staged.chmod(status.st_mode & 0o777)
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.chown(staged, status.st_uid, status.st_gid)
            if _content(config) == content:
                staged.replace(target)
                return
        finally:
            staged.unlink(missing_ok=True)
    raise HostNotAdded(f"{config} changes all the time", hint=f"write this as its first line: Include {ours}")


def close_entry(folder: RunFolder, run: str) -> None:
    """Forget how a run was entered from this machine."""
    if folder.entry.exists():
        remove_host(run, folder.path)
        folder.forget_entry()
