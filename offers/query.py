"""What a fleet requires of a machine, independent of how its file spells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orch.catalog.records import Catalog
from orch.spec.models import Fleet, Resources
from orch.spec.models.selection import has_no_driver

SpotPolicy = Literal["spot", "on-demand", "auto"]


@dataclass(frozen=True)
class MachineQuery:
    """The conditions an offer must meet. Empty tuples set none; `max_price` is per machine and hour; `fabric`
    is a backend's name of an InfiniBand fabric."""

    resources: Resources
    backends: tuple[str, ...]
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    spot_policy: SpotPolicy = "on-demand"
    max_price: float | None = None
    fabric: str | None = None

    @property
    def cpu_written(self) -> bool:
        return "cpu" in self.resources.model_fields_set

    @property
    def memory_written(self) -> bool:
        return "memory_mib" in self.resources.model_fields_set

    @property
    def fewest_first(self) -> bool:
        """Return True if the number of GPUs has no upper bound: then the smallest machines come first."""
        count = self.resources.gpu.count
        return (count.min or 0) > 0 and count.max is None


def usual_backends(catalog: Catalog) -> tuple[str, ...]:
    """The backends searched when a fleet names none: those of the catalogue that orch has a driver for."""
    return tuple(name for name in catalog.backends if not has_no_driver(name))


def machine_query(fleet: Fleet, catalog: Catalog, configured: Sequence[str] = ()) -> MachineQuery:
    """The query of a fleet. `configured` are the project's backends, searched when the fleet names none."""
    clouds = tuple(name for name in configured if name in catalog.backends)
    return MachineQuery(
        resources=fleet.resources,
        backends=fleet.backends or clouds or usual_backends(catalog),
        regions=fleet.regions,
        zones=fleet.availability_zones,
        instance_types=fleet.instance_types,
        spot_policy=fleet.spot_policy,
        max_price=None if fleet.max_price is None else float(fleet.max_price),
        fabric=None if fleet.network is None else fleet.network.fabric,
    )
