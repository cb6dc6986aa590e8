"""Records of a project, in its stacks and its ledger: fleets, nodes, volumes, variables, the audit log."""
