"""Where `${{ orch.array_task_id }}` may stand: runs that are of no array have none."""

from __future__ import annotations

from orch.spec.document.draft import Draft, scalars
from orch.spec.document.reference_scopes import scope_of
from orch.spec.grammar import interpolate
from orch.spec.grammar.values import Problem
from orch.spec.rules.rule import Findings, Rule


def index_is_of_an_array(draft: Draft) -> Findings:
    if draft.kind == "task" and draft.written("array"):
        return
    for path, scalar in scalars(draft.node):
        if "array_task_id" not in scalar.text:
            continue
        try:
            references = interpolate.references(scalar.text, scope_of(draft.kind, path).site)
        except Problem:
            continue  # told when it was read
        for reference in references:
            if reference.name == "array_task_id":
                yield draft.diagnostic(
                    "ORCH133",
                    path,
                    f"`${{{{ {reference} }}}}` is known only in the runs of an array",
                    hint="write `array: 1-10` beside it"
                    if draft.kind == "task"
                    else "write it in a task with `array`",
                )


RULES = (Rule(("array",), index_is_of_an_array),)
