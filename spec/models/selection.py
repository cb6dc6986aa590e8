"""Where nodes come from: backends, regions, zones, prices. Fleets, runs and profiles have these in common."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field

from orch.spec.grammar.values import Problem, shown
from orch.spec.models.backends import MODELS, OTHER_NAMES, installed
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.parsing import Reads
from orch.spec.models.fields.types import Money, Names, Text, choice, text
from orch.spec.suggest import closest

BACKENDS = tuple(MODELS)
"""Those of this package."""
# Names known from elsewhere that have no driver.
FOREIGN_BACKENDS = (
    "amddevcloud", "cloudrift", "cudo", "datacrunch", "digitalocean", "dstack", "hotaisle",
    "jarvislabs", "slurm", "tensordock", "vastai", "verda", "vultr",
)  # fmt: skip


def has_no_driver(name: str) -> bool:
    """Return True if a backend is only known by name; another package may add its driver."""
    return name in FOREIGN_BACKENDS and name not in installed()


def check_backend(name: str) -> str:
    """The backend's name. Raises Problem ORCH116 for one that nobody knows."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    known = (*BACKENDS, *installed(), *FOREIGN_BACKENDS)
    if name in known:
        return name
    match = closest(name, known)
    hint = f"did you mean '{match}'?" if match else f"known are {', '.join(BACKENDS)}"
    raise Problem("ORCH116", f"unknown backend {shown(name)}", hint=hint, replacement=match)


def _backends(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise Problem("ORCH112", "a list of backends is expected", hint=f"write `[{text(value, 'a list')}]`")
    read: list[str] = []
    for index, item in enumerate(cast("list[object]", value)):
        try:
            read.append(check_backend(text(item, "a backend")))
        except Problem as problem:
            problem.at = (index,)
            raise
    return tuple(read)


BackendName = json_schema.words(*BACKENDS, *FOREIGN_BACKENDS, *OTHER_NAMES)
Backends = Annotated[tuple[str, ...], Reads(_backends, json_schema.rows(BackendName, "list of backends"))]
SpotPolicy = Annotated[Literal["spot", "on-demand", "auto"], choice("spot", "on-demand", "auto")]


class Choosing(Section):
    """Properties that narrow the machines that may be used."""

    spellings: ClassVar[dict[str, str]] = {
        "backend": "backends",
        "region": "regions",
        "zones": "availability_zones",
        "zone": "availability_zones",
    }
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"backend", "region", "zones", "zone"})

    regions: Names = Field(default=(), description="Any of these; all if not given.")
    availability_zones: Names = Field(default=(), description="Any of these; all if not given.")
    instance_types: Names = Field(default=(), description="Names of machine types, `*` for any ending.")
    spot_policy: SpotPolicy = Field(
        default="on-demand", description="`spot`: only such; `auto`: both. Fleet and run must both allow it."
    )
    max_price: Money | None = Field(default=None, description="US dollars per node and hour.")
    reservation: Text | None = Field(
        default=None, description="Capacity reservation or block of AWS, or reservation of GCP."
    )
