"""The file of a simulated account: things, what refers to what, knobs and the log of calls.

SQLite in WAL mode: a process may be killed at any moment and several may write at once; what was committed is
there for all of them.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orch.runner.private import private_file

SCHEMA_VERSION = 1

Doc = dict[str, Any]

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE things (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, region TEXT NOT NULL, name TEXT, live INTEGER NOT NULL DEFAULT 1,
    number INTEGER NOT NULL, doc TEXT NOT NULL
);
CREATE INDEX things_by_kind ON things (kind, region, live, number);
CREATE INDEX things_by_name ON things (kind, name);
CREATE TABLE refs (source TEXT NOT NULL, target TEXT NOT NULL, role TEXT NOT NULL,
    weight INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (source, target, role)) WITHOUT ROWID;
CREATE INDEX refs_by_target ON refs (target, role);
CREATE TABLE taken (space TEXT NOT NULL, item TEXT NOT NULL, owner TEXT NOT NULL,
    PRIMARY KEY (space, item)) WITHOUT ROWID;
CREATE INDEX taken_by_owner ON taken (owner);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE calls (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, service TEXT NOT NULL, action TEXT NOT NULL,
    region TEXT NOT NULL, caller TEXT NOT NULL, params TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0,
    error TEXT
);
CREATE TABLE tokens (token TEXT PRIMARY KEY, result TEXT NOT NULL) WITHOUT ROWID;
"""


class Store:
    """One open state file. Its methods are for use inside `transaction()`, one thread at a time."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.is_file():
            raise FileNotFoundError(path)
        self._lock = threading.RLock()
        if create:
            private_file(path)  # what the database keeps beside it has its mode
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._db.execute("PRAGMA journal_mode=WAL")
        # A commit survives the death of its process; only a power cut could lose the last ones.
        self._db.execute("PRAGMA synchronous=OFF")
        if create:
            with self.transaction():
                for statement in TABLES.strip().split(";"):
                    if statement.strip():
                        self._db.execute(statement)
                self.put_meta("schema", SCHEMA_VERSION)
        else:
            self._db.execute("SELECT value FROM meta")  # a file without tables is told when it is opened

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing. Other processes wait for its end."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A part of a transaction that may fail alone: it is undone then, and the rest goes on."""
        self._db.execute("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK TO attempt")
            self._db.execute("RELEASE attempt")
            raise
        self._db.execute("RELEASE attempt")

    # -- meta and counters --------------------------------------------------------------------------------

    def meta(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def put_meta(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def count(self, name: str) -> int:
        """The next number of a counter, from 1."""
        self._db.execute(
            "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (name,)
        )
        return int(self._db.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()[0])

    # -- things -------------------------------------------------------------------------------------------

    def put(self, thing_id: str, kind: str, region: str, doc: Doc, name: str | None = None) -> None:
        """Add a thing, or replace its document (and its name, where one is given)."""
        text = json.dumps(doc, separators=(",", ":"))
        cursor = self._db.execute(
            "UPDATE things SET doc = ?, name = COALESCE(?, name) WHERE id = ?", (text, name, thing_id)
        )
        if cursor.rowcount == 0:
            self._db.execute(
                "INSERT INTO things (id, kind, region, name, number, doc) VALUES (?, ?, ?, ?, ?, ?)",
                (thing_id, kind, region, name, self.count("things"), text),
            )

    def get(self, thing_id: str, kind: str | None = None) -> Doc | None:
        """A thing by id, gone ones that are still listed included."""
        row = self._db.execute("SELECT kind, doc FROM things WHERE id = ?", (thing_id,)).fetchone()
        return json.loads(row[1]) if row and kind in (None, row[0]) else None

    def kind_of(self, thing_id: str) -> str | None:
        row = self._db.execute("SELECT kind FROM things WHERE id = ?", (thing_id,)).fetchone()
        return row[0] if row else None

    def find(self, kind: str, name: str, region: str | None = None) -> str | None:
        """The id of the live thing of this name."""
        rows = self._db.execute(
            "SELECT id, region FROM things WHERE kind = ? AND name = ? AND live = 1", (kind, name)
        )
        return next((row[0] for row in rows if region in (None, row[1])), None)

    def is_named(self, name: str) -> bool:
        """Whether anything live has this name; names of security groups have their VPC before them."""
        query = "SELECT 1 FROM things WHERE live = 1 AND (name = ? OR name LIKE ?) LIMIT 1"
        return self._db.execute(query, (name, f"% {name}")).fetchone() is not None

    def each(self, kind: str, region: str | None = None, *, gone: bool = False) -> list[tuple[str, Doc]]:
        """All of a kind in the order they were made; `gone`: those that ended but are still listed too."""
        rows = self._db.execute(
            "SELECT id, doc FROM things WHERE kind = ? AND (? IS NULL OR region = ?) AND live >= ? ORDER "
            "BY number",
            (kind, region, region, 0 if gone else 1),
        )
        return [(row[0], json.loads(row[1])) for row in rows]

    def tally(self, kind: str, region: str) -> int:
        """How many live ones there are."""
        query = "SELECT COUNT(*) FROM things WHERE kind = ? AND region = ? AND live = 1"
        return int(self._db.execute(query, (kind, region)).fetchone()[0])

    def end(self, thing_id: str) -> None:
        """It is over, but still listed (a terminated instance, a cancelled reservation)."""
        self._db.execute("UPDATE things SET live = 0 WHERE id = ?", (thing_id,))
        self.release(thing_id)

    def remove(self, thing_id: str) -> None:
        self._db.execute("DELETE FROM things WHERE id = ?", (thing_id,))
        self.release(thing_id)

    def release(self, thing_id: str) -> None:
        """Drop what it refers to and what it has taken."""
        self._db.execute("DELETE FROM refs WHERE source = ?", (thing_id,))
        self._db.execute("DELETE FROM taken WHERE owner = ?", (thing_id,))

    # -- references and what is taken -----------------------------------------------------------------------

    def refer(self, source: str, target: str, role: str, weight: int = 1) -> None:
        self._db.execute("INSERT OR REPLACE INTO refs VALUES (?, ?, ?, ?)", (source, target, role, weight))

    def unrefer(self, source: str, role: str, target: str | None = None) -> None:
        self._db.execute(
            "DELETE FROM refs WHERE source = ? AND role = ? AND (? IS NULL OR target = ?)",
            (source, role, target, target),
        )

    def referrers(self, target: str, role: str | None = None) -> list[tuple[str, str]]:
        """(source, role) of what refers to it."""
        rows = self._db.execute(
            "SELECT source, role FROM refs WHERE target = ? AND (? IS NULL OR role = ?) ORDER BY source, "
            "role",
            (target, role, role),
        )
        return [(row[0], row[1]) for row in rows]

    def targets(self, source: str, role: str) -> list[str]:
        rows = self._db.execute(
            "SELECT target FROM refs WHERE source = ? AND role = ? ORDER BY target", (source, role)
        )
        return [row[0] for row in rows]

    def weight(self, target: str, role: str) -> int:
        query = "SELECT COALESCE(SUM(weight), 0) FROM refs WHERE target = ? AND role = ?"
        return int(self._db.execute(query, (target, role)).fetchone()[0])

    def take(self, space: str, item: str, owner: str) -> bool:
        """Take one item of a space (an address of a subnet). False when another has it."""
        try:
            self._db.execute("INSERT INTO taken VALUES (?, ?, ?)", (space, item, owner))
        except sqlite3.IntegrityError:
            return False
        return True

    def taken(self, space: str) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM taken WHERE space = ?", (space,)).fetchone()[0])

    # -- calls --------------------------------------------------------------------------------------------

    def begin_call(self, call: Doc) -> int:
        """Write a call down before it has any effect; its number."""
        number = self.count("calls")
        self._db.execute(
            "INSERT INTO calls (number, at, service, action, region, caller, params) "
            "VALUES (:number, :at, :service, :action, :region, :caller, :params)",
            {**call, "number": number, "params": json.dumps(call["params"], default=str)},
        )
        return number

    def end_call(self, number: int, error: str | None) -> None:
        self._db.execute("UPDATE calls SET done = 1, error = ? WHERE number = ?", (error, number))

    def calls(self) -> list[Doc]:
        rows = self._db.execute(
            "SELECT number, at, service, action, region, caller, params, done, error FROM calls ORDER BY "
            "number"
        )
        names = ("number", "at", "service", "action", "region", "caller", "params", "done", "error")
        return [{**dict(zip(names, row, strict=True)), "params": json.loads(row[6])} for row in rows]

    def token(self, token: str) -> Doc | None:
        """What was answered to a client token before."""
        row = self._db.execute("SELECT result FROM tokens WHERE token = ?", (token,)).fetchone()
        return json.loads(row[0]) if row else None

    def put_token(self, token: str, result: Doc) -> None:
        self._db.execute("INSERT OR REPLACE INTO tokens VALUES (?, ?)", (token, json.dumps(result)))
