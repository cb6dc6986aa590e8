"""A server of PostgreSQL for tests: one for all processes of a test session, a database for each test.

The first process that needs it starts a keeper, which is this file as a program. The keeper starts the server
and ends it when no process uses it any more: each holds a lock on one file, which the kernel lifts when the
process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 120

# Nothing of a test must outlive a power cut. Locks and isolation are as everywhere.
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "max_connections": "200",
}


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`; None where there is no server. Debian keeps it off PATH."""
    found = shutil.which("initdb")
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: float(file.parts[-3])
    )
    candidates = [*([Path(found).resolve()] if found else []), *reversed(packaged)]
    return next((file.parent for file in candidates if (file.parent / "postgres").exists()), None)


@dataclass(frozen=True)
class Postgres:
    """A running server. `folder` has its socket."""

    folder: Path

    def url(self, database: str) -> str:
        return f"postgresql://tests@/{database}?host={self.folder}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, which is removed afterwards with whoever is still connected."""
        import psycopg

        name = f"t{uuid.uuid4().hex}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
            try:
                yield self.url(name)
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def server(shared: Path) -> Iterator[Postgres]:
    """The server of the processes that name this folder."""
    with (shared / "postgres.users").open("w") as users, (shared / "postgres.start").open("w") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)  # waits for one that is just being ended
        ready = shared / "postgres.ready"
        if not ready.exists():
            _start_keeper(shared, ready)
        fcntl.flock(start, fcntl.LOCK_UN)
        yield Postgres(Path(ready.read_text()))


def _start_keeper(shared: Path, ready: Path) -> None:
    with (shared / "postgres.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(shared)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the tests first
        )
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            keeper.kill()
            raise RuntimeError(f"PostgreSQL did not start:\n{(shared / 'postgres.log').read_text()}")
        time.sleep(0.02)


def keep(shared: Path) -> None:
    """Start a server, and end it when nobody uses it."""
    with own_server() as own, own.running(), (shared / "postgres.users").open("w") as users:
        written = shared / "postgres.new"
        written.write_text(str(own.folder))
        written.rename(shared / "postgres.ready")
        fcntl.flock(users, fcntl.LOCK_EX)
        (shared / "postgres.ready").unlink()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server of the caller's own, which does not run yet. Its data is removed at the end."""
    folder, found = Path(tempfile.mkdtemp(prefix="orch-pg-", dir=_open_folder())), binaries()
    if found is None:
        raise RuntimeError("there is no `initdb`")
    try:
        user = _server_user()
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        own = OwnServer(folder, found, user)
        make = [found / "initdb", "-D", own.data, "-U", "tests", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run([*make, "--locale=C"], check=True, stdout=subprocess.DEVNULL, **own.as_user)
        yield own
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class OwnServer(Postgres):
    """A server that its owner starts and ends, once or several times."""

    found: Path
    user: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def as_user(self) -> dict[str, Any]:
        if self.user is None:
            return {"cwd": self.folder}
        ids = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        return {"cwd": self.folder, **ids}

    @contextmanager
    def running(self, ended_by: signal.Signals = signal.SIGINT, output: int | None = None) -> Iterator[None]:
        """`ended_by`: SIGINT ends its sessions, too, and SIGQUIT leaves all to recovery, as a crash does."""
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        words = [self.found / "postgres", "-D", self.data, "-k", self.folder, *settings]
        process = subprocess.Popen(words, stdout=output, stderr=output, **self.as_user)
        try:
            _wait_for(process, self)
            yield
        finally:
            process.send_signal(ended_by)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _server_user() -> pwd.struct_passwd | None:
    """Who the server runs as: it refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("no user `postgres` or `nobody`, and PostgreSQL refuses to run as root")


def _open_folder() -> Path:
    """A folder for temporary files that another user may enter; short, for the path of a socket is."""
    for folder in (Path(tempfile.gettempdir()).resolve(), Path("/tmp")):
        if all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents)):
            return folder
    raise RuntimeError("no folder for temporary files is open to other users")


def _wait_for(process: subprocess.Popen[Any], made: Postgres) -> None:
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(made.url("postgres")).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
