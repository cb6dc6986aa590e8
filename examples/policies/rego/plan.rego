# Rules of your own over the JSON of `orch preview FILE --json`, for conftest:
#
#     orch preview p5.yml --json > plan.json
#     conftest test plan.json --policy examples/policies/rego
package main

import rego.v1

most_deleted := 1

deny contains message if {
	gone := [change.name | some change in input.changes; change.op in {"delete", "replace"}]
	count(gone) > most_deleted
	message := sprintf("%d resources are deleted or replaced: %s", [count(gone), concat(", ", gone)])
}

deny contains message if {
	input.cost.delta > 100
	message := sprintf("the plan adds $%.2f an hour", [input.cost.delta])
}

warn contains message if {
	some violation in input.policies
	violation.exempt != null
	message := sprintf("%s is exempt until %s", [violation.name, violation.exempt.expires])
}
