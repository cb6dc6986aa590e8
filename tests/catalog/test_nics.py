"""The network cards, quotas and images of AWS types, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.catalog.aws.machines import default_image, images, nics, quotas, unit_quota, vcpu_quota
from orch.catalog.load import catalog

TYPES = {
    name: each for (backend, name), each in catalog(Path("/nonexistent")).types.items() if backend == "aws"
}


def test_every_type_of_the_catalogue_has_its_cards() -> None:
    assert set(nics()) == set(TYPES)


def test_no_type_has_more_efa_interfaces_than_cards() -> None:
    assert [each.type for each in nics().values() if each.cards and each.efa > each.cards] == []


def test_only_types_with_efa_have_its_bandwidth_and_levels() -> None:
    assert [each.type for each in nics().values() if bool(each.efa) != bool(each.gbps)] == []
    assert [each.type for each in nics().values() if each.levels and not each.efa] == []


def test_every_type_has_a_quota_on_demand() -> None:
    assert [name for name in TYPES if vcpu_quota(name, "on-demand") is None] == []


def test_every_type_has_an_image_but_for_cards_that_none_has_a_driver_for() -> None:
    without = {name.split(".")[0] for name, each in TYPES.items() if default_image(each) is None}
    assert without == {"g4ad", "dl2q"}


@pytest.mark.parametrize(
    ("name", "market", "code"),
    [
        ("p5.48xlarge", "on-demand", "L-417A185B"),
        ("p5.48xlarge", "spot", "L-C4BD4855"),
        ("p4d.24xlarge", "spot", "L-7212CCBC"),
        ("g6e.48xlarge", "on-demand", "L-DB2E81BA"),
        ("trn2.48xlarge", "on-demand", "L-2C3B7624"),
        ("c7i.8xlarge", "spot", "L-34B43A08"),
        ("i4i.large", "on-demand", "L-1216C47A"),
        ("inf2.xlarge", "on-demand", "L-1945791B"),
        ("dl2q.24xlarge", "on-demand", "L-6E869C2A"),
        ("d3.xlarge", "on-demand", "L-1216C47A"),
        ("x2idn.16xlarge", "on-demand", "L-7295265B"),
        ("u7i-12tb.224xlarge", "on-demand", "L-43DA4232"),
        ("hpc7a.96xlarge", "on-demand", "L-F7808C92"),
        ("p3dn.24xlarge", "spot", "L-7212CCBC"),
        ("vt1.3xlarge", "on-demand", "L-DB2E81BA"),
    ],
)
def test_a_type_counts_against_the_quota_of_its_family(name: str, market: str, code: str) -> None:
    row = vcpu_quota(name, market)  # type: ignore[arg-type]
    assert row is not None
    assert row.code == code


def test_a_type_without_a_known_quota_has_none() -> None:
    assert vcpu_quota("p6-b200.48xlarge", "spot") is None


def test_units_have_one_quota_each() -> None:
    assert unit_quota("address").code == "L-0263D0A3"
    assert unit_quota("interface").service == "vpc"
    assert len({(row.market, row.pattern) for row in quotas()}) == len(quotas())


def test_images_are_found_by_a_public_parameter() -> None:
    assert [row.parameter for row in images() if not row.parameter.startswith("/aws/service/")] == []
