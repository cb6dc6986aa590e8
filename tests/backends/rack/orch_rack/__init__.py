"""A backend outside the package: machines of a rack, here containers by orch's own provider."""
