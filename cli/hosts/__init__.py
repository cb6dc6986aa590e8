"""The verbs about hosts and nodes: check, exec, ssh, cordon."""
