"""What policies say of tasks, each at its line, and which tasks they refuse."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import date

from orch.policies.settings import Settings, Subject, finding_of, violations
from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.errors import ExitCode
from orch.spec.loader.load import Document, InvalidConfiguration
from orch.spec.models import Task


def task_violations(document: Document, settings: Settings, root: str, today: date) -> Iterator[Diagnostic]:
    """Yield violations of policies by a task; an error if one refuses it. Nothing for other documents.

    `root`: the folder of `orch.yml`; `today`: the day on which exemptions are judged.
    """
    if isinstance(document.model, Task):
        source = document.draft.source.file
        file = os.path.relpath(source, root) if source != "<stdin>" else ""
        subject = Subject(document.model.name or "", file, today)
        for each in violations(settings.of_task(document.model), subject):
            yield finding_of(each).placed(document)


def require_allowed(
    documents: Iterable[Document], settings: Settings, root: str, today: date
) -> tuple[Diagnostic, ...]:
    """Return violations of policies by tasks that are allowed all the same. Raises InvalidConfiguration,
    which exits with 4, if a policy refuses one."""
    found = [each for document in documents for each in task_violations(document, settings, root, today)]
    if any(each.severity is Severity.ERROR for each in found):
        raise InvalidConfiguration(found, ExitCode.POLICY)
    return tuple(found)
