"""The page of policies says of each rule what the code says."""

from __future__ import annotations

import re

import pytest
from kit.support import ROOT

from orch.policies.rule import Rule
from orch.policies.settings import RULES

PAGE = ROOT / "docs" / "reference" / "policies.md"


def row(rule: Rule) -> str:
    """The row of the table for a rule."""
    parameters = "<br>".join(
        f"`{each.name}` ({each.type.words}): {each.description}"
        + (f" `{str(each.default).lower()}` if not given." if each.default is not None else "")
        for each in rule.parameters
    )
    source = f"[{rule.framework}]({rule.url})" if rule.framework else "-"
    level = f"{rule.level}; nothing without a parameter" if rule.needs else rule.level
    return (
        f"| `{rule.name}` | {rule.kind} | {rule.severity} | {level} | {rule.description} "
        f"| {parameters or '-'} | {rule.remediation} | {source} |"
    )


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_each_rule_has_its_row(rule: Rule) -> None:
    assert row(rule) in PAGE.read_text("utf-8").splitlines()


def test_there_is_no_row_without_a_rule() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (?:resource|plan|task) \|", PAGE.read_text("utf-8"), re.M)
    assert rows == list(RULES)
