"""Rules between the properties of a document: the table of all.

A rule names the properties it needs; when one of them is already wrong, the rule keeps silent. Rules look
at nothing outside the files but key files, and there only to warn. A rule returns its findings and never
raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orch.spec.diagnostics import Diagnostic
from orch.spec.document.draft import Draft
from orch.spec.models import BACKEND_MODELS
from orch.spec.rules import fleet, project, run, task
from orch.spec.rules.rule import Rule

RULES: Mapping[str, tuple[Rule, ...]] = {
    "fleet": fleet.RULES,
    "task": task.RULES,
    "dev-environment": run.DEV_ENVIRONMENT_RULES,
    "volume": fleet.VOLUME_RULES,
    "project": project.RULES,
    **dict.fromkeys(BACKEND_MODELS, project.BACKEND_RULES),
}


def check_document(draft: Draft) -> Iterable[Diagnostic]:
    """Findings of all rules for one document."""
    if draft.partial is None:
        return
    for rule in RULES[draft.kind]:
        if draft.broken.isdisjoint(rule.needs):
            yield from rule.check(draft)
