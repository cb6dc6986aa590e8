"""How changes of a fleet of existing hosts are told: their properties are in the file's own words already."""

from __future__ import annotations

from orch.components.explain import Explained

EXPLAINED = Explained(noun="host", theirs=True)
