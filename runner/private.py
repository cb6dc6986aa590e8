"""Files and folders that only their owner may read, whatever the umask: the content of `.orch`."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

FOLDER = 0o700
FILE = 0o600


def private_folder(path: Path) -> Path:
    """Create the folder and its missing parents with mode 0700. An existing folder keeps its mode."""
    for folder in reversed((path, *path.parents)):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER, exist_ok=True)
    return path


def private_file(path: Path) -> Path:
    """Create an empty file with mode 0600 if it is missing, for libraries that open it by name.

    One that is there is not opened: closing it would give up all POSIX locks that this process has on it,
    those of a library too. Another process would take a database for one that nobody uses.
    Source: sqlite.org/howtocorrupt.html, 2.2.
    """
    if not path.exists():
        staged = stage_file(path, "")
        try:
            with suppress(FileExistsError):
                os.link(staged, path)
        finally:
            staged.unlink()
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, mode 0600: another process may be reading it."""
    staged = stage_file(path, text)
    try:
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise


def stage_file(path: Path, text: str | bytes, mode: int = FILE) -> Path:
    """Write the content to a new file in the folder of `path`, to be renamed or linked to `path`.

    The file name is random: processes of two containers that share the folder may have the same number.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        try:
            stream.write(text.encode() if isinstance(text, str) else text)
            stream.flush()
        except OSError:
            staged.unlink(missing_ok=True)
            raise
    return staged


def tighten(folder: Path) -> bool:
    """Remove others' access to a folder and its content. True if a former version had left it open."""
    status = folder.stat()
    if not status.st_mode & 0o077 or os.geteuid() not in (0, status.st_uid):
        return False
    folder.chmod(FOLDER)
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            try:
                mode = os.lstat(path).st_mode
                if mode & 0o077 and not os.path.islink(path):
                    os.chmod(path, mode & 0o700)
            except FileNotFoundError:
                continue  # a lock, or another passing thing
    return True
