"""A cloud that is asked by REST: one call each, with errors of ours.

Reads are tried again; a change is one call, since these clouds know no idempotency key: whoever makes
something looks for its name first.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote_plus, urlsplit

from orch import __version__
from orch.components.accounts import CREDS, Account, selected_in_rehearsal
from orch.components.cloud_errors import WAITS, Category, CategoryRefused, CloudRefused
from orch.spec.cursors import follow
from orch.spec.install import install_hint

if TYPE_CHECKING:
    import httpx

CALL_S = 60.0
CONNECT_S = 15.0
READS = 4
"""How often a read is tried."""

RATE_PAUSES = 30
"""For how many of its pauses a client asks again while a cloud asks to wait: others ask it too."""

MOST_PAUSE_S = 15.0
"""The longest pause before a read is tried again."""

OF_ANYBODY: tuple[Category, ...] = ("credentials", "permission", "rate")
"""Refusals that are believed by their status alone: gateways before an API send them in their own words."""

_KEY = re.compile(r"[!-~]+")

Row = dict[str, Any]
"""A document of a cloud's API, with its names."""

Part = TypeVar("Part")


def query_text(query: Mapping[str, Any]) -> str:
    """A query as it is sent, and signed where a cloud asks for that: keys in order, escaped as forms are."""
    return "&".join(f"{quote_plus(key)}={quote_plus(str(query[key]))}" for key in sorted(query))


def no_credentials(cloud: str, detail: str, hint: str | None) -> CloudRefused:
    """Return the error that there is nothing to log in with."""
    return CloudRefused(f"there are no credentials of {cloud}", detail=detail, hint=hint, code="ORCH303")


def check_address(cloud: str, *, url: str, variable: str, usual: str) -> None:
    """Raises CloudRefused for an address that is none. `variable`: that of the address, `usual`: the one
    without it."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise CloudRefused(
            f"the address of {cloud}'s API does not read",
            detail=f"{variable} is {url!r}",
            hint=f"write an address with its version, as {usual}, or unset {variable}",
            code="ORCH303",
        )


def check_key(cloud: str, key: str, hint: str | None) -> None:
    """Raises CloudRefused for a key with letters that no key has."""
    if not _KEY.fullmatch(key):
        raise CloudRefused(
            f"the API key of {cloud} does not read",
            detail="a key has letters and digits of ASCII, and no blanks",
            hint=hint,
            code="ORCH303",
        )


def account_of_key(
    settings: Any, session: object | None, open_login: Callable[[Any], object], variable: str
) -> Account:
    """Return the account of the API key that `open_login` takes, without an id. `session`: a rehearsal's,
    which needs no key. Raises what `open_login` raises."""
    if session is not None:
        return Account(f"{settings.title} account", selected_by=selected_in_rehearsal())
    open_login(settings)
    source = "of orch.yml" if settings.creds is not None else f"in {variable}"
    selected = CREDS if settings.creds is not None else variable
    return Account(f"{settings.title} account of the API key {source}", selected_by=selected)


class RestClient(ABC):
    """The account of a login. Raises CloudRefused where httpx is not installed.

    `title`: what people call the cloud; `extra`: what installs what asks it; `refused`: its errors;
    `endpoint`: the variable that names another address of its API, if there is one.
    """

    title: ClassVar[str]
    extra: ClassVar[str]
    refused: ClassVar[type[CategoryRefused]]
    endpoint: ClassVar[str | None] = None

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        pause_s: float = 1.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._pause_s, self._url = pause_s, url
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise CloudRefused(
                f"what asks {self.title} is not installed",
                detail=str(error),
                hint=install_hint(self.extra),
                code="ORCH303",
            ) from error
        own = {"User-Agent": f"orch/{__version__}", **(headers or {})}
        limits = httpx.Timeout(CALL_S, connect=CONNECT_S)
        self._http = httpx.Client(base_url=url, headers=own, timeout=limits, transport=transport)

    def close(self) -> None:
        self._http.close()

    # -- what each cloud has in its own way ----------------------------------------------------------------

    @abstractmethod
    def category(self, status: int, problem: Mapping[str, Any], detail: str) -> Category:
        """What a refusal is. `problem`: its body, empty where that is no document; `detail`: what people read
        of it."""

    @abstractmethod
    def is_own(self, status: int, problem: Mapping[str, Any]) -> bool:
        """Whether the body of a refusal is a document as this cloud's API sends it: a proxy, a captive portal
        and a load balancer have others. `problem`: as for `category`."""

    @abstractmethod
    def detail(self, problem: Mapping[str, Any]) -> str:
        """What people read of a refusal; empty where it says nothing."""

    def remark(self, meaning: Category, headers: Mapping[str, str]) -> str:
        """What is to be said behind the detail of a refusal. `headers`: of the answer."""
        return ""

    def signed(self, what: str, method: str, path: str, query: str) -> Mapping[str, str]:
        """Headers of one call. Raises `refused`."""
        return {}

    # -- calls --------------------------------------------------------------------------------------------

    def call(
        self, what: str, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Row:
        """One call: its answer, empty where there is none. `what`: what it is for, as in "cannot …".

        Raises `refused`.
        """
        import httpx

        text = query_text(query or {})
        headers = dict(self.signed(what, method, path, text))
        try:
            answer = self._http.request(
                method, f"{path}?{text}" if text else path, json=body, headers=headers
            )
        except httpx.HTTPError as error:
            raise self.no_answer(what, str(error) or type(error).__name__) from error
        if answer.is_success:
            return self._document(what, answer) if answer.content else {}
        problem = _problem(answer)
        own = self.is_own(answer.status_code, problem)
        detail = (self.detail(problem) if own else "") or f"HTTP {answer.status_code}"
        after = answer.headers.get("Retry-After", "")
        meaning = self.category(answer.status_code, problem, detail)
        # Whoever else answers knows nothing of the account: neither what is gone, nor what has no room.
        if not own and meaning not in OF_ANYBODY:
            detail = f"{detail}, and the answer is none of {self.title}'s API"
            raise self.no_answer(what, detail, status=answer.status_code)
        if meaning == "transient":
            raise self.no_answer(what, detail, status=answer.status_code)
        raise self.refused(
            what,
            meaning,
            f"{detail}{self.remark(meaning, answer.headers)}",
            status=answer.status_code,
            retry_after_s=float(after) if after.isdecimal() else None,
        )

    def read(self, what: str, path: str, query: Mapping[str, Any] | None = None) -> Row:
        """A read, tried again while the cloud does not answer, and longer while it asks to wait. Raises
        `refused`."""
        return self.retried(lambda: self.call(what, "GET", path, query=query))

    def retried(self, ask: Callable[[], Row]) -> Row:
        """Return the answer of a call that changes nothing, which is tried again as `read` is."""
        end = time.monotonic() + RATE_PAUSES * self._pause_s
        attempt = 0
        while True:
            try:
                return ask()
            except CategoryRefused as refused:
                again = {"rate": time.monotonic() < end, "transient": attempt < READS - 1}
                if not again.get(refused.category):
                    raise
                pause = refused.retry_after_s or self._pause_s * 2**attempt
            attempt += 1
            time.sleep(min(pause, MOST_PAUSE_S))

    def unless_gone(self, ask: Callable[[], Part]) -> Part | None:
        """Return the answer to a question, None if what it is about is gone. Raises `refused`."""
        try:
            return ask()
        except CategoryRefused as refused:
            if refused.category == "gone":
                return None
            raise

    def until_gone(self, words: str, delete: Callable[[], bool], *, for_s: float) -> None:
        """Delete a resource, as soon as nothing uses it any more, and wait until it is gone: what it stands
        on is deleted next. `delete` begins to, and returns whether anything of it is left.

        Raises `refused`, also where it is still there after `for_s` seconds.
        """
        end = time.monotonic() + for_s
        while True:
            try:
                if not delete():
                    return
            except CategoryRefused as refused:
                if refused.category not in WAITS or time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise self.refused(f"delete the {words}", "conflict", "it is still there")
            time.sleep(self._pause_s)

    def rows(self, what: str, path: str, key: str, query: Mapping[str, Any] | None = None) -> list[Row]:
        """What a read lists under a key. Raises `refused`."""
        return self.part(what, self.read(what, path, query), key, list)

    def pages(
        self, what: str, path: str, query: Mapping[str, Any], parameter: str, cursor_of: Callable[[Row], Any]
    ) -> Iterator[Row]:
        """Yield the pages of a list. `parameter`: of the query, with the cursor that `cursor_of` finds on the
        page before. Raises `refused`, also for a list that does not end."""
        return follow(
            lambda cursor: self.read(what, path, {**query, **({parameter: cursor} if cursor else {})}),
            cursor_of,
            lambda why: self.no_answer(what, why),
        )

    def no_answer(self, what: str, detail: str, *, status: int | None = None) -> CategoryRefused:
        """That nothing came, or what the API does not answer."""
        other = f" ({self.endpoint} names another)" if self.endpoint else ""
        hint = f"see that this is the address of {self.title}'s API{other}, and try again later"
        return self.refused(what, "transient", detail, status=status, where=self._url, hint=hint)

    def part(self, what: str, answer: Row, key: str, kind: type[Part] | tuple[type[Part], ...]) -> Part:
        """What an answer has under a key. Raises `refused` where it is nothing of this kind: another service
        answers at the address."""
        found = answer.get(key)
        if not isinstance(found, kind):
            raise self.no_answer(what, f"the answer has no `{key}`")
        return found

    def _document(self, what: str, answer: httpx.Response) -> Row:
        try:
            document = answer.json()
        except ValueError as error:
            raise self.no_answer(what, "the answer is not JSON") from error
        if not isinstance(document, dict):
            raise self.no_answer(what, "the answer is no document")
        return document


def oldest_first(rows: Iterable[Row], name: str, created: str) -> list[Row]:
    """Return the rows of a name, for no cloud promises that names are unique. `created`: the field that says
    when one was; those without it are in order of their ids."""
    found = [row for row in rows if row.get("name") == name]
    return sorted(found, key=lambda row: (str(row.get(created, "")), str(row["id"])))


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
