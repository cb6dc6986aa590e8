"""Bounds for diagnostics: so many of one file, so many in all, and the rest as a number.

A file of 1 MiB has room for 150,000 mistakes; whoever reads what a stranger wrote keeps a few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orch.spec.diagnostics import Diagnostic, Severity, Span

MOST_OF_FILE = 100
MOST = 1000
CODE = "ORCH179"


class DiagnosticList(list[Diagnostic]):
    """The first `MOST_OF_FILE` diagnostics of a file or document, in the order in which they were found.

    `left_out`: the number of others; `failed`: one of the others is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_out, self.failed = 0, False

    def append(self, diagnostic: Diagnostic, /) -> None:
        if len(self) < MOST_OF_FILE:
            super().append(diagnostic)
        else:
            self.leave_out(diagnostic)

    def leave_out(self, diagnostic: Diagnostic) -> None:
        self.left_out += 1
        self.failed = self.failed or diagnostic.severity is Severity.ERROR

    def count_rest(self, others: DiagnosticList) -> None:
        """Add the number of diagnostics that another list left out."""
        self.left_out += others.left_out
        self.failed = self.failed or others.failed

    def extend(self, diagnostics: Iterable[Diagnostic], /) -> None:
        for each in diagnostics:
            self.append(each)
        if isinstance(diagnostics, DiagnosticList):
            self.count_rest(diagnostics)

    def __iadd__(self, diagnostics: Iterable[Diagnostic], /) -> DiagnosticList:  # type: ignore[override]
        self.extend(diagnostics)
        return self

    @property
    def any_error(self) -> bool:
        """One of them is an error, which may be left out."""
        return self.failed or any(each.severity is Severity.ERROR for each in self)


class Collected:
    """Diagnostics of several files: of each the first `MOST_OF_FILE`, and `MOST` in all."""

    def __init__(self) -> None:
        self._files: dict[str, DiagnosticList] = {}
        self._kept = 0

    def append(self, diagnostic: Diagnostic) -> None:
        of_file = self._files.setdefault(diagnostic.span.file, DiagnosticList())
        if self._kept >= MOST:
            of_file.leave_out(diagnostic)
            return
        self._kept -= len(of_file)
        of_file.append(diagnostic)
        self._kept += len(of_file)

    def extend(self, diagnostics: Iterable[Diagnostic], file: str = "") -> None:
        """Add diagnostics; those that their list left out are of `file`."""
        for each in diagnostics:
            self.append(each)
        if isinstance(diagnostics, DiagnosticList) and diagnostics.left_out:
            self._files.setdefault(file, DiagnosticList()).count_rest(diagnostics)

    def __iter__(self) -> Iterator[Diagnostic]:
        for of_file in self._files.values():
            yield from of_file

    @property
    def unreliable(self) -> frozenset[str]:
        """The files of which an error is left out: nothing tells which of their documents it is in."""
        return frozenset(file for file, of_file in self._files.items() if of_file.failed)

    def rest(self) -> Iterator[Diagnostic]:
        """A diagnostic for what is left out of each file, and one for all files of which nothing is kept."""
        silent = {file: each for file, each in self._files.items() if each.left_out and not each}
        for of_file in self._files.values():
            if of_file and of_file.left_out:
                last = max(of_file, key=lambda each: each.order).span
                yield _left_out(last, of_file.left_out, "this file", failed=of_file.failed)
        if silent:
            files = f"{len(silent)} other file{'s' if len(silent) > 1 else ''}"
            failed = any(each.failed for each in silent.values())
            number = sum(each.left_out for each in silent.values())
            yield _left_out(Span(min(silent), 1, 1, 1, 1), number, files, failed=failed)


def _left_out(span: Span, number: int, where: str, *, failed: bool) -> Diagnostic:
    problems = f"{number:,} more problems" if number > 1 else "1 more problem"
    return Diagnostic(
        CODE,
        span,
        f"{problems} in {where} {'are' if number > 1 else 'is'} not shown",
        severity=Severity.ERROR if failed else Severity.WARNING,
        hint=f"at most {MOST_OF_FILE} of a file are shown, {MOST:,} in all: correct these, then check again",
    )
