"""Lambda, asked by HTTP, no faster than it lets itself be asked.

Source: Lambda Cloud API 1.10 (docs.lambda.ai): one request a second, one launch every 12 seconds. Both are
kept for all threads of a process; what other processes ask besides is refused with 429, and tried again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from orch.components.cloud.rest.client import MOST_PAUSE_S, RestClient, Row, oldest_first
from orch.components.cloud_errors import WAITS, Category, CategoryRefused, CloudRefused
from orch.components.lambda_.account.errors import LambdaRefused, category
from orch.components.lambda_.account.facts import (
    FoundFileSystem,
    LambdaFacts,
    Lookups,
    Stock,
    TypeStock,
    image_of,
)
from orch.components.lambda_.account.login import ENDPOINT, Login
from orch.components.marks.marked import MarkedResource, Price, Survey, is_ours, mark_of
from orch.components.marks.orphans import NamedResource
from orch.runner.private import private_folder

CALL_EVERY_S = 1.0
LAUNCH_EVERY_S = 12.0

LAUNCH, TERMINATE = "/instance-operations/launch", "/instance-operations/terminate"
TAG = "orch:stack"
"""The key of the tag with the mark of an instance's stack. Source: as above, RequestedTagEntry."""

GONE_S = 1200.0
"""How long something may take to go."""

GONE = ("terminating", "terminated", "preempted")
"""States of an instance that is no more."""


@dataclass(frozen=True)
class Kind:
    """A kind of resource. `listed` and `path` are the API's; `words`: as people call it."""

    listed: str
    path: str
    words: str


INSTANCE = Kind("/instances", "/instances", "instance")
SSH_KEY = Kind("/ssh-keys", "/ssh-keys", "SSH key")
FILE_SYSTEM = Kind("/file-systems", "/filesystems", "file system")
RULES = "/firewall-rules"


class LambdaClient(RestClient):
    """The account of a key. `call_every_s`, `launch_every_s`: how long is waited between two.

    Raises CloudRefused where httpx is not installed.
    """

    title: ClassVar[str] = "Lambda"
    extra: ClassVar[str] = "lambda"
    refused: ClassVar[type[CategoryRefused]] = LambdaRefused
    endpoint: ClassVar[str | None] = ENDPOINT

    def __init__(
        self,
        login: Login,
        *,
        pause_s: float = 2.0,
        call_every_s: float = CALL_EVERY_S,
        launch_every_s: float = LAUNCH_EVERY_S,
    ) -> None:
        super().__init__(login.url, {"Authorization": f"Bearer {login.api_key}"}, pause_s=pause_s)
        self._login = login
        self._calls, self._launches = Pace(call_every_s), Pace(launch_every_s)
        self._launching = threading.Lock()

    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        return category(status, str(_error(problem).get("code") or ""))

    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        """An error with a code of the form AREA/WORDS, and a message. Source: Lambda Cloud API, ApiError…"""
        error = _error(problem)
        return "/" in str(error.get("code") or "") and isinstance(error.get("message"), str)

    def detail(self, problem: Mapping[str, Any]) -> str:
        error = _error(problem)
        words = " ".join(str(error[part]) for part in ("message", "suggestion") if error.get(part))
        return f"{words} ({error['code']})" if error.get("code") else words

    def call(
        self, what: str, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Row:
        pace = self._launches if path == LAUNCH else self._calls
        pace.wait(then=self._calls if pace is self._launches else None)
        try:
            answer = super().call(what, method, path, query=query, body=body)
        except LambdaRefused as refused:
            if refused.category == "rate":
                pace.slower(self._pause_s)
            raise
        pace.faster()
        return answer

    # -- resources ----------------------------------------------------------------------------------------

    def all(self, kind: Kind, query: Mapping[str, Any] | None = None) -> list[Row]:
        """All of a kind that are not about to go. Raises LambdaRefused."""
        rows = self.rows(f"list each {kind.words}", kind.listed, "data", query)
        return [row for row in rows if row.get("status") not in GONE]

    def _document_of(self, instance: str) -> Row:
        what = f"ask for the instance {instance}"
        return self.part(what, self.read(what, f"{INSTANCE.path}/{instance}"), "data", dict)

    def of_cluster(self, cluster: str) -> list[Row]:
        """The instances of the 1-Click Cluster of an id; none for one that there is not. Raises
        LambdaRefused."""
        try:
            return self.all(INSTANCE, {"cluster_id": cluster})
        except LambdaRefused as refused:
            if refused.category in ("gone", "invalid"):
                return []
            raise

    def named(self, kind: Kind, name: str) -> list[Row]:
        """All of a kind by a name: that names of instances are unique is not documented. Instances tell no
        time of their making, so they are in order of their ids. Raises LambdaRefused."""
        return oldest_first(self.all(kind), name, "created")

    def get(self, kind: Kind, resource: str) -> Row | None:
        """A resource by its id, None when it is gone. Raises LambdaRefused."""
        if kind is not INSTANCE:  # there is no call for one
            return next((row for row in self.all(kind) if row["id"] == resource), None)
        found = self.unless_gone(lambda: self._document_of(resource))
        return None if found is None or found["status"] in GONE else found

    def launch(self, body: Mapping[str, Any], *, for_s: float = 0.0) -> str:
        """Begin to make an instance, by one call: its id. While Lambda asks to wait, for `for_s` seconds at
        most, the call is made again before any other launch of this process is.

        Raises LambdaRefused.
        """
        what = f"launch the instance {body['name']}"
        with self._launching:
            made = self.part(what, self._launched(what, body, for_s), "data", dict)
        ids: list[str] = self.part(what, made, "instance_ids", list)
        if not ids:
            raise self.no_answer(what, "the answer has no id")
        return str(ids[0])

    def _launched(self, what: str, body: Mapping[str, Any], for_s: float) -> Row:
        end = time.monotonic() + for_s
        while True:
            try:
                return self.call(what, "POST", LAUNCH, body=body)
            except LambdaRefused as refused:
                if refused.category != "rate" or time.monotonic() >= end:
                    raise

    def create(self, kind: Kind, body: Mapping[str, Any]) -> str:
        """Make an SSH key or a file system, by one call: its id. Raises LambdaRefused."""
        what = f"create the {kind.words} {body['name']}"
        made = self.part(what, self.call(what, "POST", kind.path, body=body), "data", dict)
        return self.part(what, made, "id", str)

    def delete(self, kind: Kind, resource: str) -> None:
        """Begin to delete a resource; what is gone is no error. Raises LambdaRefused."""
        what = f"delete the {kind.words} {resource}"
        if kind is INSTANCE:
            body = {"instance_ids": [resource]}
            self.unless_gone(lambda: self.call(what, "POST", TERMINATE, body=body))
        else:
            self.unless_gone(lambda: self.call(what, "DELETE", f"{kind.path}/{resource}"))

    def remove(self, kind: Kind, resource: str, *, for_s: float) -> None:
        """See `until_gone`. Raises LambdaRefused."""

        def delete() -> bool:
            there = self._there(kind, resource)
            if there:
                self.delete(kind, resource)
            return there

        self.until_gone(f"{kind.words} {resource}", delete, for_s=for_s)

    def _there(self, kind: Kind, resource: str) -> bool:
        """Whether anything of it is left: an instance that is terminating holds its file systems."""
        if kind is not INSTANCE:
            return self.get(kind, resource) is not None
        row = self.unless_gone(lambda: self._document_of(resource))
        return row is not None and row["status"] not in ("terminated", "preempted")

    # -- firewall rules, which are one list of the whole account ---------------------------------------------

    def rules(self) -> list[Row]:
        """Raises LambdaRefused."""
        return self.rows("ask for the firewall rules", RULES, "data")

    def change_rules(self, change: Callable[[Sequence[Row]], list[Row]], *, for_s: float) -> None:
        """Put what `change` makes of the rules that are there, until they are that: the call replaces all,
        and whoever changes them at the same moment may undo it. On this machine one process at a time does.

        Raises LambdaRefused, also where they are not that after `for_s` seconds, and CloudRefused where
        nothing can be locked on this machine.
        """
        end = time.monotonic() + for_s
        while True:
            try:
                with self._alone():
                    rules = self.rules()
                    wanted = change(rules)
                    if rules == wanted:
                        return
                    self.call("change the firewall rules", "PUT", RULES, body={"data": wanted})
            except LambdaRefused as refused:
                if refused.category not in WAITS or time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise LambdaRefused("change the firewall rules", "conflict", "somebody else changes them")
            time.sleep(self._pause_s)

    def drop_rules(self, name: str, *, for_s: float) -> None:
        """Take away those of a description. Raises LambdaRefused."""
        self.change_rules(lambda rules: [row for row in rules if row.get("description") != name], for_s=for_s)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        import platformdirs

        folder = Path(platformdirs.user_cache_dir("orch")) / "lambda"
        name = hashlib.sha256(f"{self._login.url} {self._login.api_key}".encode()).hexdigest()[:16]
        with ExitStack() as stack:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                file = os.open(private_folder(folder) / name, flags, 0o600)
                stack.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise CloudRefused(
                    "cannot lock the firewall rules of the account against other processes of this machine",
                    where=str(error.filename or folder),
                    detail=error.strerror or str(error),
                    hint="make it a folder that this user may write to, or set XDG_CACHE_HOME to one that is",
                    code="ORCH307",
                ) from error
            yield

    # -- what is there, by its name -----------------------------------------------------------------------

    def removable(self, price: Price) -> Iterator[NamedResource]:
        """All instances, SSH keys and firewall rules; file systems hold data, and stay. Raises
        LambdaRefused."""
        for kind in (INSTANCE, SSH_KEY):
            for row in self.all(kind):
                region = str((row.get("region") or {}).get("name") or "")
                hourly = (
                    partial(price, str(row["instance_type"]["name"]), region, False)
                    if kind is INSTANCE
                    else lambda: 0.0
                )
                remove = partial(self.remove, kind, str(row["id"]), for_s=GONE_S)
                name = str(row.get("name") or "")
                yield NamedResource(kind.words, str(row["id"]), name, remove, region, None, hourly)
        for name in sorted({str(row.get("description", "")) for row in self.rules()}):
            yield NamedResource("firewall rules", name, name, partial(self.drop_rules, name, for_s=GONE_S))

    def data_of(self, project: str) -> Survey:
        """The file systems that have a name of the project's, and how many have one of others. Raises
        LambdaRefused."""
        rows = [row for row in self.all(FILE_SYSTEM) if is_ours(str(row["name"]))]
        own = [(row, mark) for row in rows if (mark := mark_of(str(row["name"]), project)) is not None]
        found = tuple(
            MarkedResource(
                "lambda",
                mark,
                FILE_SYSTEM.words,
                str(row["id"]),
                str(row["name"]),
                str(row["region"]["name"]),
                datetime.fromisoformat(str(row["created"]).replace("Z", "+00:00")),
                holds_data=True,
                mounted_as=(str(row["name"]), str(row["id"])),
            )
            for row, mark in own
        )
        return Survey(found, foreign=len(rows) - len(own))

    # -- what a plan has to know ---------------------------------------------------------------------------

    def stock(self) -> Stock:
        """Raises LambdaRefused."""
        what = "ask for the stock"
        rows: Mapping[str, Row] = self.part(what, self.read(what, "/instance-types"), "data", dict)
        return {
            name: TypeStock(
                int(row["instance_type"]["price_cents_per_hour"]),
                int(row["instance_type"]["specs"]["storage_gib"]),
                frozenset(str(each["name"]) for each in row["regions_with_capacity_available"]),
            )
            for name, row in rows.items()
        }

    def regions(self) -> frozenset[str]:
        """Those that the account has. Raises LambdaRefused."""
        return frozenset(str(row["name"]) for row in self.rows("ask for the regions", "/regions", "data"))

    def file_systems(self) -> tuple[FoundFileSystem, ...]:
        """Raises LambdaRefused."""
        return tuple(
            FoundFileSystem(str(row["id"]), str(row["name"]), str(row["region"]["name"]))
            for row in self.all(FILE_SYSTEM)
        )

    def facts(self, lookups: Lookups) -> LambdaFacts:
        """What a plan has to know. Raises LambdaRefused."""
        images = self.rows("list the images", "/images", "data")
        there = self.file_systems() if lookups.file_systems else ()
        found = {
            name: each
            for name in lookups.file_systems
            for each in there
            if name in (each.id, each.name) and each.region == lookups.region
        }
        return LambdaFacts(
            image=image_of(images, lookups),
            file_systems=found,
            ssh_from=tuple(
                sorted(
                    {
                        str(row["source_network"])
                        for row in self.rules()
                        if lets_in(row, 22) and not is_ours(str(row.get("description", "")))
                    }
                )
            ),
        )


class Pace:
    """Lets calls of all threads through one by one, `every_s` seconds apart: twice as far after one that was
    asked to wait, since other processes ask too, and nearer again with each that was not."""

    def __init__(self, every_s: float) -> None:
        self._every_s, self.gap_s, self._next = every_s, every_s, 0.0
        self._lock = threading.Lock()

    def wait(self, then: Pace | None = None) -> None:
        """`then`: what is waited for next; this one counts from there, however long that takes."""
        with self._lock:
            time.sleep(max(0.0, self._next - time.monotonic()))
            if then is not None:
                then.wait()
            self._next = time.monotonic() + self.gap_s

    def slower(self, least_s: float) -> None:
        """After a call that was asked to wait."""
        self.gap_s = min(max(2 * self.gap_s, least_s), max(MOST_PAUSE_S, 4 * self._every_s))
        self._next = max(self._next, time.monotonic() + self.gap_s)

    def faster(self) -> None:
        """After one that was not."""
        self.gap_s = max(0.9 * self.gap_s, self._every_s)


def lets_in(rule: Mapping[str, Any], port: int) -> bool:
    """Whether a firewall rule is about this TCP port."""
    first, last = rule.get("port_range") or (1, 65535)
    return rule["protocol"] in ("tcp", "all") and first <= port <= last


def _error(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    error = problem.get("error")
    return error if isinstance(error, Mapping) else {}
