"""Opening the ledger's database: SQLite made safe for several processes, or PostgreSQL."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy import event as sql_event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.schema import CreateColumn

from orch.runner.errors import LedgerReadOnly, LedgerUnusable, NewerLedger
from orch.runner.ledger import schema
from orch.runner.private import private_file, private_folder
from orch.spec.install import install_hint

# How long another process's transaction is waited for.
PATIENCE_S = 20.0

# After how long PostgreSQL ends a transaction whose process says nothing more: it may hold locks.
IDLE_S = 60.0

# The option of transactions that only read.
READ_ONLY = "orch_read_only"


def open_engine(url: str) -> tuple[Engine, str]:
    """An engine for a SQLAlchemy URL, its tables made when they are not there; and the URL without password.

    Raises LedgerUnusable (no such URL, not writable, driver missing, no server) or NewerLedger.
    """
    parsed = _parse_url(url)
    safe_url = make_url(url).render_as_string(hide_password=True)  # as `ledger` of orch.yml has it
    try:
        if parsed.get_backend_name() == "sqlite":
            engine = _sqlite(Path(parsed.database or ""), parsed)
        else:
            engine = _postgres(parsed)
        _prepare(engine)
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise LedgerUnusable(
            "the driver for this ledger is not installed",
            where=safe_url,
            detail=str(error),
            hint=install_hint("postgres"),
        ) from error
    except (DBAPIError, OSError) as error:
        raise unusable(safe_url, error) from error
    return engine, safe_url


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        # What cannot be read may hold a password.
        raise _bad_url("the ledger's URL cannot be read", "the `ledger` of orch.yml") from None
    safe_url = parsed.render_as_string(hide_password=True)
    if backend not in ("sqlite", "postgresql"):
        raise _bad_url("a ledger is a database of SQLite or PostgreSQL", safe_url)
    if backend == "sqlite" and not parsed.database:
        raise _bad_url("the ledger's URL names no file", safe_url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _bad_url(summary: str, where: str) -> LedgerUnusable:
    return LedgerUnusable(
        summary, where=where, hint="write `sqlite:///PATH` or `postgresql://USER@HOST/DATABASE`"
    )


def _sqlite(path: Path, url: URL) -> Engine:
    if ".orch" in path.parts:
        private_folder(path.parent)
        private_file(path)  # what the database keeps beside it has its mode
    else:
        path.parent.mkdir(parents=True, exist_ok=True)  # a ledger elsewhere may be a group's
    engine = create_engine(url, connect_args={"timeout": PATIENCE_S, "isolation_level": None})
    shared = is_shared(path.parent)
    now = partial(server_time, path.parent) if shared else time.time

    @sql_event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        _set_journal(connection, path, shared=shared)
        connection.execute("PRAGMA synchronous=FULL")
        connection.create_function("orch_now", 0, now)

    # The driver's own BEGIN is deferred: two that read and then both write cannot be serialised, and one gets
    # "locked" at once whatever its timeout. Taking the write lock at the start is the only form that waits.
    @sql_event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine


def _postgres(url: URL) -> Engine:
    """Nobody is waited for for ever: no server, and no process that was stopped in a transaction."""
    engine = create_engine(
        url.update_query_dict(
            {
                "connect_timeout": f"{PATIENCE_S:.0f}",
                "tcp_user_timeout": f"{PATIENCE_S * 1000:.0f}",
                **url.query,
            }
        ),
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
    )

    @sql_event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {round(PATIENCE_S * 1000)}")
            cursor.execute(f"SET idle_in_transaction_session_timeout = {round(IDLE_S * 1000)}")
        connection.commit()

    return engine


def only_reading(engine: Engine) -> Engine:
    """The engine for transactions that only read: they wait for no writer, and see one moment."""
    if engine.dialect.name == "sqlite":
        return engine.execution_options(**{READ_ONLY: True})
    # At READ COMMITTED each statement sees another moment: a run, and the ranks of its next attempt.
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def one_at_a_time(db: Connection) -> None:
    """Whoever submits a run, or begins a member of an array that has a limit, waits here for the transactions
    of others who do."""
    db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema").with_for_update())


def _set_journal(connection: Any, path: Path, *, shared: bool) -> None:
    """How the database keeps what is not committed: a new one in a log, so that readers need not wait.

    The index of that log lies in the memory of one machine: a database that several see keeps a journal. Of
    several processes that open a new ledger the first one sets it; the others are told "locked" at once,
    whatever their timeout.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if not shared and connection.execute("PRAGMA page_count").fetchone()[0]:
                return  # as it was begun, perhaps by a machine that has it over the network
            mode = "DELETE" if shared else "WAL"
            current_mode = str(connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0])
            if not (shared and current_mode == "wal"):
                return
            detail = "it was begun on one machine, which is at work on it"
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            detail = str(error)
        if time.monotonic() > deadline:
            raise LedgerUnusable(
                "the run ledger cannot be used",
                where=str(path),
                detail=detail,
                hint="end the orch processes that use it, on other machines too, and try again",
            )
        time.sleep(0.02)


def _prepare(engine: Engine) -> None:
    version = _version(engine)
    if version is None:
        with engine.begin() as db:
            if db.dialect.name == "postgresql":
                # Of several processes that open a new ledger, one makes the tables; SQLite's lock does that.
                db.execute(select(func.pg_advisory_xact_lock(func.hashtext("orch: make the ledger"))))
            schema.metadata.create_all(db)
            if db.execute(select(func.count()).select_from(schema.meta)).scalar_one() == 0:
                db.execute(insert(schema.meta).values(key="schema", value=str(schema.SCHEMA_VERSION)))
        version = _version(engine)
    if version is not None and version > schema.SCHEMA_VERSION:
        raise NewerLedger(
            "the run ledger was written by a newer orch",
            detail=f"its schema is {version}, this orch knows {schema.SCHEMA_VERSION}",
            hint="upgrade orch on this machine",
        )
    if version is not None and version < schema.SCHEMA_VERSION:
        _upgrade(engine)


def _upgrade(engine: Engine) -> None:
    """Bring the tables of an earlier version to this one's; of several processes, the first one does."""
    with engine.begin() as db:
        key = schema.meta.c.key == "schema"
        version = int(db.execute(select(schema.meta.c.value).where(key).with_for_update()).scalar_one())
        for number in range(version + 1, schema.SCHEMA_VERSION + 1):
            for column in schema.ADDED.get(number, ()):
                table = db.dialect.identifier_preparer.format_table(column.table)
                definition = CreateColumn(column).compile(dialect=db.dialect)
                db.execute(text(f"ALTER TABLE {table} ADD COLUMN {definition}"))
        schema.metadata.create_all(db)
        for index in schema.run.indexes:
            index.create(db, checkfirst=True)
        if version < schema.SCHEMA_VERSION:
            db.execute(update(schema.meta).where(key).values(value=str(schema.SCHEMA_VERSION)))


def _version(engine: Engine) -> int | None:
    with engine.begin() as db:
        if not inspect(db).has_table(schema.meta.name):
            return None
        value = db.execute(select(schema.meta.c.value).where(schema.meta.c.key == "schema")).scalar()
    return None if value is None else int(value)


def may_only_read(error: BaseException) -> bool:
    """Whether PostgreSQL refused a write: to this login, or because the server is a copy of another one.

    Source: PostgreSQL manual, appendix A, error codes."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in ("42501", "25006")


def unusable(where: str, error: BaseException) -> LedgerUnusable:
    """The error for a database that refused us, in its own first line."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    detail = lines[0] if lines else type(error).__name__
    if may_only_read(error):
        return LedgerReadOnly(
            "this login may only read the run ledger",
            where=where,
            detail=detail,
            hint="who changes fleets or runs jobs must be able to write there: docs/how-to/teams.md",
        )
    if where.startswith("postgresql"):
        hint = "is the server up, and may this user write there?"
    elif "locked" in detail:
        hint = "another process holds it: `fuser` with its file names that one; try again when it is done"
    else:
        hint = "is its folder writable, and is there space on the disk?"
    return LedgerUnusable("the run ledger cannot be used", where=where, detail=detail, hint=hint)


# As the kernel calls them. FUSE stands for sshfs, gluster, s3fs and whatever else is not known to be local.
SHARED = {
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "afpfs",
        "webdav",
        "ceph",
        "lustre",
        "gpfs",
    ),
    *("beegfs", "glusterfs", "gfs2", "ocfs2", "orangefs", "panfs", "pvfs2", "virtiofs", "vboxsf", "vmhgfs"),
}


def is_shared(folder: Path) -> bool:
    """Whether other machines may write to a folder too."""
    filesystem = filesystem_type(folder.resolve(), _mounts())
    return filesystem in SHARED or filesystem.startswith("fuse")


def filesystem_type(path: Path, mounts: Iterable[tuple[str, str]]) -> str:
    """The file system a path lies on, of (mount point, kind) as they were mounted; "" if on none of them."""
    deepest, depth = "", -1
    for point, filesystem in mounts:
        if path.is_relative_to(point) and len(Path(point).parts) >= depth:
            deepest, depth = filesystem, len(Path(point).parts)
    return deepest


def read_mountinfo(text: str) -> tuple[tuple[str, str], ...]:
    """Linux's /proc/self/mountinfo: mount points, with what is escaped in them, and kinds."""
    mounts: list[tuple[str, str]] = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) > 4 and tail:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            mounts.append((point, tail.split(" ")[0]))
    return tuple(mounts)


def read_mount(text: str) -> tuple[tuple[str, str], ...]:
    """What `mount` of macOS and BSD says: `SOURCE on POINT (KIND, …)`."""
    matches = (re.fullmatch(r".*? on (.*) \(([^,)]+).*\)", line) for line in text.splitlines())
    return tuple((each[1], each[2]) for each in matches if each)


def server_time(folder: Path) -> float:
    """Now, by the clock of whoever keeps the files of a folder: seconds since the epoch.

    Machines that share a folder may disagree on the time; the time it gives to a file is one for all."""
    handle, name = tempfile.mkstemp(prefix=".clock-", dir=folder)
    try:
        os.close(handle)
        os.utime(name)  # without a time: the server's now
        return os.stat(name).st_mtime
    finally:
        os.unlink(name)


def _mounts() -> tuple[tuple[str, str], ...]:
    try:
        return read_mountinfo(Path("/proc/self/mountinfo").read_text(errors="replace"))
    except OSError:
        pass
    try:
        output = subprocess.run(["mount"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return read_mount(output)
