"""The file of a saved plan: what was approved, as far as it can be compared, without secrets.

A digest over all of it finds a file that was cut short or edited by accident: who edits the file can make the
digest anew. What each stack has beside it is a seal: an HMAC whose key lies at the state. A plan has
decisions that are taken from it, such as a machine image, so only a reader of the state can write a plan.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from orch.spec.install import UPGRADE
from orch.spec.suggest import few
from orch.stacks.errors import ProjectError
from orch.stacks.events.changes import Op

FORMAT = "orch-plan"
SCHEMA = 1

LATER = "?"
"""What the digest of an input begins with whose value is only known once another resource exists."""

MOST_BYTES = 64 << 20
"""A plan of thousands of nodes has a few megabytes."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Operation(_Record):
    """Operation of the engine on one resource. `replaces`: properties that force a replacement; `properties`:
    those that change; `inputs`: a keyed digest for each input, without secrets."""

    urn: str
    op: Op
    replaces: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    inputs: dict[str, str] = {}


class RecordedState(_Record):
    """A stack's state: its serial where it is known, and a digest of each recorded resource, by urn.

    `pending`: names of what a call was at work on when it was read."""

    serial: int | None
    resources: dict[str, str]
    pending: tuple[str, ...] = ()


class Decisions(_Record):
    """Decisions of a plan that no file and no state records yet: `up --plan` decides the same.

    `scope`: identity of the project's resources among those of others; `created`: when the fleet was, in
    seconds since the epoch; `images`: machine images that were looked up, by pin.
    """

    scope: str
    created: int | None = None
    images: dict[str, str] = {}


class Price(_Record):
    """The price of nodes that are equal: US dollars an hour of each, None where no list has it."""

    nodes: str
    machine: str
    place: str
    market: str
    price: float | None


class PriceList(_Record):
    """A price list as it was read."""

    as_of: str
    digest: str


class HostKey(_Record):
    """A host key that the plan accepts."""

    host: str
    key: str
    fingerprint: str
    source: str


class DriftRecord(_Record):
    """A difference between record and reality, as it is shown: a secret's values are hidden."""

    urn: str
    path: str
    registered: str
    observed: str


class Terms(_Record):
    """Terms of all stacks of a plan: their names, versions, and when it may be applied."""

    project: str
    rehearsal: bool
    made: AwareDatetime
    expires: AwareDatetime
    orch: str
    engine: str
    stacks: tuple[str, ...]

    def is_expired(self, now: datetime) -> bool:
        return now >= self.expires


class StackPlan(_Record):
    """The plan of one fleet or volume.

    `files`: digests of what it was read from, relative to the project's root, None for one that is missing.
    `lineage`: a digest of the mark of its stack, which a stack that was removed and made anew lacks; "" for a
    stack without a mark.
    `states`: its stack, and the networks that it shares, by stack. `cost`: US dollars after it, None where it
    is not known. `problems`: hosts that are kept out, with the code.
    """

    kind: Literal["fleet", "volume"]
    name: str
    where: str
    file: str
    files: dict[str, str | None]
    lineage: str
    states: dict[str, RecordedState]
    decisions: Decisions
    place: str | None = None
    nodes: tuple[str, ...] = ()
    prices: dict[str, PriceList] = {}
    priced: tuple[Price, ...] = ()
    cost: float | None = 0.0
    delta: float | None = 0.0
    per: Literal["hour", "month"] = "hour"
    unpriced: tuple[str, ...] = ()
    providers: dict[str, str] = {}
    operations: tuple[Operation, ...] = ()
    drift: tuple[DriftRecord, ...] = ()
    problems: tuple[str, ...] = ()
    new_keys: tuple[HostKey, ...] = ()
    reasons: tuple[str, ...] = ()
    summary: dict[str, int] = {}
    pending: bool = False
    seal: str = ""

    def sealed(self, terms: Terms, key: str) -> StackPlan:
        """The same with the seal that `key` makes."""
        return self.model_copy(update={"seal": self._seal(terms, key)})

    def is_sealed(self, terms: Terms, key: str) -> bool:
        """Return True if it is unchanged since it was sealed with this key. Reasons are for people, and left
        out."""
        return hmac.compare_digest(self.seal.encode(), self._seal(terms, key).encode())

    def _seal(self, terms: Terms, key: str) -> str:
        own = self.model_dump(mode="json", exclude={"seal", "reasons"})
        text = _canonical({"terms": terms.model_dump(mode="json"), "stack": own})
        return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()

    @property
    def id(self) -> str:
        """Twelve hex digits by which its stack remembers it."""
        return self.seal[:12]

    @property
    def trusted_decisions(self) -> Decisions:
        """Return the decisions that `up --plan` uses. A seal without the key of a stack proves nothing:
        images are looked up again then, and compared."""
        return self.decisions if self.lineage else self.decisions.model_copy(update={"images": {}})

    @property
    def stack(self) -> str:
        """The name of its stack in the engine."""
        return next(iter(self.states))

    @property
    def serial(self) -> int | None:
        return self.states[self.stack].serial

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


class Unplanned(_Record):
    """A stack that has no plan, and why."""

    title: str
    where: str
    summary: str


class Commit(_Record):
    """The commit of git. `base`: where it left the default branch, None where there is none here; `dirty`:
    the plan's files are not as committed."""

    commit: str
    base: str | None = None
    dirty: bool = False


class SavedPlan(_Record):
    """A saved plan. `path`: what was planned, from the folder of the call."""

    format: Literal["orch-plan"] = FORMAT
    schema_: int = Field(default=SCHEMA, alias="schema")
    path: str
    terms: Terms
    git: Commit | None
    stacks: tuple[StackPlan, ...]
    unplanned: tuple[Unplanned, ...] = ()

    @property
    def digest(self) -> str:
        return _digest(self.model_dump(mode="json", by_alias=True))

    @property
    def id(self) -> str:
        """Twelve hex digits that tell its file from others, for people."""
        return self.digest.removeprefix("sha256:")[:12]

    def text(self) -> str:
        """The file, sealed by a digest of all else in it."""
        data = self.model_dump(mode="json", by_alias=True)
        return json.dumps({**data, "digest": _digest(data)}, indent=2, ensure_ascii=False) + "\n"


def _digest(data: dict[str, Any]) -> str:
    return f"sha256:{hashlib.sha256(_canonical(data).encode()).hexdigest()}"


def _canonical(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def stamp(moment: datetime) -> str:
    """A moment as people and files have it: `2026-11-25T13:00:00Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def read(path: Path) -> SavedPlan:
    """A saved plan from its file. Raises ProjectError for one that is missing, is something else, was edited
    or was written by a newer orch."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(
            path,
            "the plan cannot be read",
            error.strerror or str(error),
            "`orch preview FILE --out plan.json` writes one",
        ) from error
    again = "take the file that `orch preview FILE --out plan.json` wrote, as it was"
    try:
        if len(content) > MOST_BYTES:
            raise ValueError("it is too large")
        data = json.loads(content)
        if not isinstance(data, dict) or data.get("format") != FORMAT:  # type: ignore[union-attr]
            raise ValueError(f"it does not say `format: {FORMAT}`")
    except (ValueError, RecursionError) as error:
        raise _unusable(path, "this is no saved plan", str(error), again) from error
    found: dict[str, Any] = data
    schema = found.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise _unusable(
            path,
            "a newer orch wrote this plan",
            f"its schema is {schema}, this orch knows up to {SCHEMA}",
            f"{UPGRADE}; or make a new plan with this one",
        )
    seal = found.pop("digest", None)
    if seal != _digest(found):
        raise _unusable(path, "this plan was edited or cut short", "its digest is another one", again)
    try:
        return SavedPlan.model_validate(found)
    except ValidationError as error:
        words = few((f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()), 3)
        raise _unusable(path, "this is no saved plan that orch wrote", words, again) from error


def _unusable(path: Path, summary: str, detail: str, hint: str) -> ProjectError:
    return ProjectError(summary, where=str(path), detail=detail, hint=hint, code="ORCH392")
