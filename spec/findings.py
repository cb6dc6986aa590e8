"""Findings of planning: errors and warnings, each at its property, reported together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orch.spec.codes import EXIT_CODES
from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.spec.loader.load import Document, InvalidConfiguration

# Violations of what a project allows, as against mistakes.
_POLICY = range(280, 300)


@dataclass(frozen=True)
class Finding:
    """An error, a warning or a note about a fleet; `path` is the property (`network.subnets`)."""

    code: str
    path: str
    summary: str
    detail: str | None = None
    hint: str | None = None
    severity: Severity = Severity.ERROR

    def placed(self, document: Document) -> Diagnostic:
        """The same with its place in the file."""
        return document.diagnostic(
            self.code, self.path, self.summary, severity=self.severity, detail=self.detail, hint=self.hint
        )


class PlanError(OrchError):
    """A fleet that cannot be built as written. `path` is the property it is about (`resources.cpu`)."""

    exit_code = ExitCode.CONFIG

    def __init__(
        self, code: str, summary: str, *, path: str, detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(summary, detail=detail, hint=hint, code=code)
        self.path = path

    def placed(self, document: Document) -> OrchError:
        """The same as a diagnostic with the property's place in the file."""
        from orch.spec.loader.load import InvalidConfiguration

        diagnostic = document.diagnostic(
            self.code or "ORCH200", self.path, self.summary, detail=self.detail, hint=self.hint
        )
        return InvalidConfiguration((diagnostic,))


class PlanErrors(PlanError):
    """A fleet that cannot be built as written. `findings` holds its errors and warnings."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        first = next(each for each in self.findings if each.severity is Severity.ERROR)
        super().__init__(first.code, first.summary, path=first.path, detail=first.detail, hint=first.hint)
        errors = [each for each in self.findings if each.severity is Severity.ERROR]
        if all(int(each.code.removeprefix("ORCH")) in _POLICY for each in errors):
            self.exit_code = ExitCode.POLICY
        elif len(codes := {each.code for each in errors}) == 1:
            self.exit_code = EXIT_CODES.get(codes.pop(), self.exit_code)

    def placed(self, document: Document) -> InvalidConfiguration:
        """Return all findings as diagnostics with their places in the file."""
        from orch.spec.loader.load import InvalidConfiguration

        found = tuple(each.placed(document) for each in self.findings)
        return InvalidConfiguration(found, self.exit_code)


def settle(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The warnings and notes. Raises PlanErrors when there is an error among them."""
    distinct = tuple(dict.fromkeys(findings))
    if any(each.severity is Severity.ERROR for each in distinct):
        raise PlanErrors(distinct)
    return distinct
