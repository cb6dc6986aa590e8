"""What clouds have in common speaks of any cloud of the language, not of two."""

from __future__ import annotations

from typing import get_args

import pytest

from orch.catalog.records import Catalog
from orch.components.cloud.candidates import known_types, no_offer
from orch.components.cloud_errors import CloudError, Kind
from orch.offers.match import judge
from orch.offers.query import machine_query
from orch.spec.findings import PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends import title
from orch.spec.models.selection import BACKENDS

EMPTY = Catalog({}, {}, {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fleet_of_any_cloud_is_told_that_nothing_fits(backend: str) -> None:
    fleet = Fleet.model_validate(
        {"type": "fleet", "name": "lab", "nodes": "1", "backends": [backend], "instance_types": ["big"]}
    )
    wanted = machine_query(fleet, EMPTY)
    told = no_offer(fleet, wanted, EMPTY, judge(wanted, EMPTY))
    assert told.summary == f"no {title(backend)} offer fits the fleet 'lab'"
    with pytest.raises(PlanErrors) as caught:
        known_types(wanted, EMPTY)
    assert caught.value.summary == f"the catalogue has no {title(backend)} type 'big'"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_error_of_any_cloud_has_words(kind: Kind) -> None:
    error = CloudError("Nebius", "the tenant", "SomeCode", kind, "it said so", None)
    assert error.orch.startswith("ORCH")
    assert error.meaning
    assert error.answer.reason == f"SomeCode: {error.meaning}"
    assert ("the tenant" in error.meaning) is (kind == "quota")
