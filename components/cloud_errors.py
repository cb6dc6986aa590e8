"""What errors of clouds mean: which of them another place may mend. Each cloud maps its codes to kinds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, cast

from orch.components.request import CloudAnswer
from orch.spec.errors import ExitCode, OrchError

Kind = Literal["capacity", "quota", "permission", "credentials", "parameter", "throttle", "gone", "unknown"]
Verdict = Literal["next", "stop", "again"]

# What to do with each kind: try the next candidate, stop, or do the same again.
VERDICTS: dict[Kind, Verdict] = {
    "capacity": "next",
    "quota": "stop",
    "permission": "stop",
    "credentials": "stop",
    "parameter": "stop",
    "throttle": "again",
    "gone": "again",
    "unknown": "stop",
}
CODES: dict[Kind, str] = {
    "capacity": "ORCH325",
    "quota": "ORCH313",
    "permission": "ORCH304",
    "credentials": "ORCH303",
    "parameter": "ORCH357",
    "throttle": "ORCH358",
    "gone": "ORCH359",
    "unknown": "ORCH356",
}
_MEANING: dict[Kind, str] = {
    "capacity": "{} has no capacity for this here and now",
    "quota": "a quota of {} is used up",
    "permission": "{} does not let these credentials do this",
    "credentials": "{} does not accept the credentials",
    "parameter": "{} refuses a parameter",
    "throttle": "{} asks to come back later",
    "gone": "something is still in use, or not there yet",
    "unknown": "{} refuses this",
}


@dataclass(frozen=True)
class CloudError:
    """An error of a cloud. `code` is the cloud's, `orch` ours; `message` is what the cloud said.

    `owner`: what has quotas there, as `the account`. `transient`: the cloud did not answer, or broke; it did
    not ask to wait.
    """

    cloud: str
    owner: str
    code: str
    kind: Kind
    message: str
    hint: str | None
    transient: bool = False

    @property
    def verdict(self) -> Verdict:
        return VERDICTS[self.kind]

    @property
    def orch(self) -> str:
        return CODES[self.kind]

    @property
    def meaning(self) -> str:
        if self.transient:
            return f"{self.cloud} does not answer, or answers with an error of its own"
        return _MEANING[self.kind].format(self.owner if self.kind == "quota" else self.cloud)

    @property
    def answer(self) -> CloudAnswer:
        """The same for whoever tries places in turn."""
        verdict = self.verdict
        reason = f"{self.code}: {self.meaning}"
        return CloudAnswer(verdict == "next", reason, self.orch, self.hint, again=verdict == "again")


class CloudRefused(OrchError):
    """A cloud did not answer, or refused to. `error` is what it said, where it said something, `status` the
    HTTP status of that."""

    exit_code = ExitCode.PROVISION

    def __init__(
        self, summary: str, *, error: CloudError | None = None, status: int | None = None, **told: str | None
    ) -> None:
        super().__init__(summary, **told)
        self.error = error
        self.status = status
        if self.code == CODES["credentials"]:
            self.exit_code = ExitCode.CONFIG  # what is to be mended is orch.yml, or the environment

    @property
    def final(self) -> bool:
        """Whether what was asked for is not done, and will not be: a refusal with a status 4xx that no later
        try changes, or a call that was never sent for want of credentials. All else leaves it open."""
        if self.error is None:
            return self.code == "ORCH303"
        return self.error.verdict != "again" and 400 <= (self.status or 0) < 500


Category = Literal[
    "capacity", "quota", "credentials", "permission", "rate", "conflict", "gone", "invalid", "transient"
]
"""What an error is about, of a cloud whose resources are served by us: it has no code that its provider
would pass on."""

WAITS: tuple[Category, ...] = ("conflict", "transient", "rate")
"""What may be otherwise a little later: something in use, or an answer that did not come."""

KINDS: Mapping[Category, Kind] = {
    "capacity": "capacity",
    "quota": "quota",
    "credentials": "credentials",
    "permission": "permission",
    "rate": "throttle",
    "conflict": "gone",
    "gone": "gone",
    "invalid": "parameter",
    "transient": "throttle",
}


@dataclass(frozen=True)
class CategoryErrors:
    """The errors of such a cloud: `PREFIX:CATEGORY` is their code, which stands in what our provider says."""

    cloud: str
    owner: str
    prefix: str
    hints: Mapping[Category, str]

    def error(self, what: Category, message: str) -> CloudError:
        code = f"{self.prefix}:{what}"
        hint = self.hints.get(what)
        return CloudError(
            self.cloud, self.owner, code, KINDS[what], message, hint, transient=what == "transient"
        )

    def read(self, text: str) -> CloudError | None:
        """The error in what our provider said; None when there is none in it."""
        found = self._in_text.search(text)
        return self.error(cast("Category", found.group(1)), text.strip()) if found else None

    @cached_property
    def _in_text(self) -> re.Pattern[str]:
        return re.compile(rf"\b{self.prefix}:({'|'.join(KINDS)})\b")


class CategoryRefused(CloudRefused):
    """Such a cloud did not answer, or refused to. `category` says what it is about; `retry_after_s`: when it
    wants to be asked again, where it says so. A subclass has its `errors`."""

    errors: ClassVar[CategoryErrors]

    def __init__(
        self,
        what: str,
        meaning: Category,
        message: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        error = self.errors.error(meaning, message)
        super().__init__(
            f"cannot {what}: {error.meaning}",
            error=error,
            status=status,
            where=where,
            detail=f"{error.code}: {message}",
            hint=error.hint or hint,
            code=error.orch,
        )
        self.category: Category = meaning
        self.retry_after_s = retry_after_s
