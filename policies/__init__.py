"""Policies: what plans and resources may be, with levels, parameters and exemptions in `orch.yml`.

Rules are pure. `rule.py` says what a rule is, `resource_rules.py` and `plan_rules.py` hold them, and
`settings.py` lists them all and applies what `orch.yml` says. `__main__.py` is them as a pack of plain
 `pulumi preview --policy-pack`. Imports `spec` alone.
"""
