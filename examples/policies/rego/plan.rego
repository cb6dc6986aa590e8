# Rules of your own over plans, for conftest 0.60 and newer:
#
#     orch preview infra --json > plan.json    # what would change, of a file with one fleet or of a folder
#     orch preview infra --out plan.json       # or the saved plan, which `orch up --plan` applies
#     conftest test plan.json --policy examples/policies/rego
package main

import rego.v1

most_deleted := 1

most_added := 100 # US dollars an hour

# One fleet of `--json` is an object, a folder and a saved plan have a list.
stacks := object.get(input, "stacks", [input])

name(stack) := object.get(stack, "fleet", object.get(stack, "name", "it"))

# Names of the resources that a stack loses. A saved plan has `operations`, with urns.
gone(stack) := {change.name | some change in stack.changes; change.op in {"delete", "replace"}} |
	{last | some operation in stack.operations; operation.op in {"delete", "replace"}; last := split(operation.urn, "::")[3]}

added(stack) := stack.cost.delta

added(stack) := stack.delta if stack.per == "hour"

deny contains message if {
	some stack in stacks
	names := gone(stack)
	count(names) > most_deleted
	message := sprintf("%s: %d resources are deleted or replaced: %s", [name(stack), count(names), concat(", ", sort(names))])
}

deny contains message if {
	some stack in stacks
	added(stack) > most_added
	message := sprintf("%s: the plan adds $%.2f an hour", [name(stack), added(stack)])
}

# Only `--json` has what policies say.
warn contains message if {
	some stack in stacks
	some violation in stack.policies
	violation.exempt != null
	message := sprintf("%s: %s is exempt until %s", [name(stack), violation.name, violation.exempt.expires])
}
