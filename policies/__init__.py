"""Policies: what plans and resources may be, with levels, parameters and exemptions in `orch.yml`.

Rules are pure. `rule.py` says what a rule is, `resource_rules.py` and `plan_rules.py` hold them,
`resource_inputs.py` reads the inputs of each cloud's resources, and `settings.py` lists the rules and applies
what `orch.yml` says. `__main__.py` is a pack of them for plain `pulumi preview --policy-pack`. Imports `spec`
and `catalog` alone.
"""
