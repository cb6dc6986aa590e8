"""Tables of the run ledger, and the database's own clock.

Times are seconds since the epoch, always the database's: two machines that share a ledger need not agree on
the time. Where SQLite's file lies on a server, it is that server's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from orch.spec.grammar.values import encodable

# Raised when a change makes an older orch misread the ledger.
SCHEMA_VERSION = 9

metadata = MetaData()


class Plain(TypeDecorator[str]):
    """Text of others, such as a node's answer: PostgreSQL takes no NUL, and no character without a code."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        del dialect
        return None if value is None else storable(value)


def storable(text: str) -> str:
    """Text as a column of `Plain` gives it back."""
    return encodable(text).replace("\0", "\ufffd")


meta = Table(
    "meta",
    metadata,
    Column("key", String(40), primary_key=True),
    Column("value", String(200), nullable=False),
)

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(64), nullable=False),
    Column("fleet", String(64), nullable=False),
    Column("plan", Text, nullable=False),
    # Words of configuration 8: pending, submitted, provisioning, running, terminating, then done, failed or
    # terminated.
    Column("status", String(20), nullable=False),
    # What people want of it: run, stop, abort.
    Column("desired", String(10), nullable=False),
    # The furthest step that was decided on, written before it is done: see decide.Phase.
    Column("phase", String(20), nullable=False),
    Column("reason", String(60)),
    Column("message", Plain),
    Column("attempt", Integer, nullable=False),
    Column("master_port", Integer),
    Column("submitted_by", String(200), nullable=False),
    Column("owner", String(200)),
    Column("lease_until", Float),
    Column("fence", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    # Of a run that waits: when its next attempt may begin.
    Column("next_at", Float),
    # Since when it is tried again, and how often that was without success (runs/retry.py).
    Column("retry_since", Float),
    Column("retry_tries", Integer, nullable=False, server_default="0"),
    Column("priority", Integer, nullable=False, server_default="0"),
    # Of a run that waits for nodes (waiting_line.py): since when, when it last looked for some, and whether
    # other runs had them then. Since when stays until its commands begin.
    Column("queued_at", Float),
    Column("looked_at", Float),
    Column("in_use", Integer, nullable=False, server_default="0"),
    # Of a member of an array (arrays.py): the array's name and number, its index, and how many members may
    # have nodes at once, NULL for all.
    Column("array_name", String(64)),
    Column("array_id", Integer),
    Column("array_index", BigInteger),
    Column("array_limit", Integer),
    Index("run_by_name", "name", "id"),
    Index("run_by_array", "array_name", "array_id", "array_index"),
    Index("run_by_status", "status"),
    Index("run_by_fleet", "fleet", "finished_at"),
)

rank = Table(
    "rank",
    metadata,
    Column("run_id", ForeignKey("run.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("node", String(128), nullable=False),
    Column("status", String(20), nullable=False),
    Column("exit_code", Integer),
    Column("reason", String(60)),
    Column("message", Plain),
    # Since when the node has been silent, while it is.
    Column("silent_since", Float),
    # Whether its log is here and nothing of it is left on the node.
    Column("collected", Integer, nullable=False),
    # What the cloud announces of its node (node/runtime.py).
    Column("notice", String(60)),
)

# Attempts that ended and were not the last; `plan` is what cleans up nodes that did not answer then.
attempt = Table(
    "attempt",
    metadata,
    Column("run_id", ForeignKey("run.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("plan", Text, nullable=False),
    Column("events", String(60), nullable=False),
    Column("message", Plain),
    Column("started_at", Float),
    Column("finished_at", Float, nullable=False),
)

event = Table(
    "event",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", ForeignKey("run.id"), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("text", Plain, nullable=False),
)

# What the ranks of a run used, from time to time (history/metric_samples.py).
sample = Table(
    "sample",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("at", Float, nullable=False, index=True),
    Column("ranks", Integer, nullable=False),
    Column("readings", Plain, nullable=False),
    Index("sample_by_run", "run_id", "at"),
)

# Controllers that live, or did a short while ago.
controller = Table(
    "controller",
    metadata,
    Column("owner", String(200), primary_key=True),
    Column("started_by", String(200), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
)

# How long each node of a fleet was there, at one price (history/node_lives.py). What a fleet has beside its
# nodes is one, too, of the kind `beside`.
node_life = Table(
    "node_life",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("project", String(200), nullable=False),
    # Which state of a project of this name.
    Column("scope", String(16), nullable=False),
    Column("fleet", String(100), nullable=False),
    Column("node", String(128), nullable=False),
    # What tells a machine from another one of this name.
    Column("identity", String(200), nullable=False),
    Column("kind", String(10), nullable=False),
    Column("backend", String(40), nullable=False),
    Column("instance_type", String(100)),
    Column("market", String(12), nullable=False),
    Column("gpus", Integer, nullable=False),
    # US dollars; NULL where it is not known.
    Column("price_hourly", Float),
    Column("tags", Plain, nullable=False),
    Column("began_at", Float, nullable=False),
    # NULL while it is there.
    Column("ended_at", Float),
    # 0: it was found gone, and ended between `seen_at` and `ended_at`.
    Column("exact", Integer, nullable=False),
    Column("seen_at", Float, nullable=False),
    Index("node_life_by_fleet", "project", "fleet", "ended_at"),
)

# What examinations of nodes found (history/node_health.py): a row for as long as that stays the same.
node_health = Table(
    "node_health",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("project", String(200), nullable=False),
    # Which state of a project of this name.
    Column("scope", String(16), nullable=False),
    Column("fleet", String(100), nullable=False),
    Column("node", String(128), nullable=False),
    # healthy, warning or failure.
    Column("status", String(12), nullable=False),
    Column("reason", Plain, nullable=False),
    # The latest report, as JSON.
    Column("report", Plain, nullable=False),
    Column("began_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Index("node_health_by_fleet", "project", "fleet", "node"),
)

# What was changed, by whom, from where, by which plan and with which result (changes.py): the audit log.
change = Table(
    "change",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("project", String(200), nullable=False),
    # Which state of a project of this name.
    Column("scope", String(16), nullable=False),
    Column("verb", String(60), nullable=False),
    Column("subject", Plain, nullable=False),
    Column("command", Plain, nullable=False),
    Column("origin", Plain, nullable=False),
    Column("plan", Plain, nullable=False),
    # Names that no other change may hold at once, as JSON.
    Column("holds", Plain, nullable=False),
    Column("started_by", String(420), nullable=False),
    # running, done, failed or abandoned.
    Column("status", String(12), nullable=False),
    Column("result", Plain),
    Column("exit_code", Integer),
    Column("owner", String(200)),
    Column("lease_until", Float),
    Column("fence", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("change_by_project", "project", "status"),
)

# What a change does host by host, each written before it is done.
change_step = Table(
    "change_step",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("change_id", ForeignKey("change.id"), nullable=False),
    Column("host", String(128), nullable=False),
    Column("name", String(100), nullable=False),
    # running, done, failed, undone or skipped.
    Column("status", String(10), nullable=False),
    Column("message", Plain),
    Column("began_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("change_step_once", "change_id", "host", "name", unique=True),
)

# What verifications of fleets found (history/verifications.py), a row for each figure.
verification = Table(
    "verification",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("project", String(200), nullable=False),
    # Which state of a project of this name.
    Column("scope", String(16), nullable=False),
    Column("fleet", String(64), nullable=False),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    # What results must have in common to be compared: nodes, ranks, library.
    Column("conditions", Plain, nullable=False),
    Column("measure", String(40), nullable=False),
    # A node, a card of it, or "" for all nodes together.
    Column("subject", Plain, nullable=False),
    # Bytes of a message, else 0.
    Column("size", BigInteger, nullable=False),
    Column("value", Float, nullable=False),
    Column("unit", String(12), nullable=False),
    # ok, low, wrong or no floor.
    Column("judgement", String(12), nullable=False),
    Column("at", Float, nullable=False),
    Index("verification_by_fleet", "project", "scope", "fleet", "measure"),
)


ADDED: dict[int, tuple[Column[Any], ...]] = {
    2: (run.c.next_at, run.c.retry_since, run.c.retry_tries),
    3: (run.c.priority, run.c.queued_at, run.c.looked_at, run.c.in_use),
    4: (rank.c.notice,),
    9: (run.c.array_name, run.c.array_id, run.c.array_index, run.c.array_limit),
}
"""Columns that a version of the schema added to tables of the one before it."""


class clock(FunctionElement[Any]):
    """Now, by the database."""

    inherit_cache = True
    type = Float()


@compiles(clock, "sqlite")
def _sqlite_clock(element: clock, compiler: Any, **kw: Any) -> str:
    del element, compiler, kw
    return "orch_now()"  # which database.py gives each connection


@compiles(clock, "postgresql")
def _postgres_clock(element: clock, compiler: Any, **kw: Any) -> str:
    del element, compiler, kw
    return "extract(epoch from clock_timestamp())::double precision"
