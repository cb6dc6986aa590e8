"""What fits and what does not, held against a second, plainer statement of the rules."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import samples

from orch.catalog import load
from orch.catalog.records import Catalog, GpuModel, InstanceType, Offer
from orch.catalog.unpriced import unlisted_offers
from orch.offers.match import Fit, gpu_has_name, judge, names_zone, nominal_mib
from orch.offers.near_misses import near_misses
from orch.offers.query import MachineQuery, usual_backends
from orch.spec.models import Range, Resources

GIB = 1024
CATALOG: Catalog = load.catalog(Path("/nonexistent"))


# The same with a few of the types that were not surveyed, and with few of the regions of those clouds that
# sell everything everywhere: the plain rules below look at every offer.
FAMILIES = ("g6", "g5g", "g4ad", "p3dn", "trn1n", "hpc8a")
REGIONS = {
    "aws": ("us-east-1", "us-east-2", "us-west-2", "eu-north-1", "ap-northeast-1", "mx-central-1"),
    "gcp": ("us-central1", "us-east4", "europe-west4"),
}
FEW = replace(
    CATALOG,
    types={
        key: each
        for key, each in CATALOG.types.items()
        if each.surveyed or each.name.split(".")[0] in FAMILIES
    },
    lists={
        name: replace(
            each, offers=tuple(o for o in each.offers if o.region in REGIONS.get(name, (o.region,)))
        )
        for name, each in CATALOG.lists.items()
    },
    regions={name: tuple(r for r in known if r in REGIONS[name]) for name, known in CATALOG.regions.items()},
)


def wanted(resources: dict[str, Any] | None = None, **conditions: Any) -> MachineQuery:
    backends = conditions.pop("backends", usual_backends(CATALOG))
    return MachineQuery(Resources.model_validate(resources or {}), backends, **conditions)


def fits(resources: dict[str, Any] | None = None, **conditions: Any) -> tuple[Fit, ...]:
    return judge(wanted(resources, **conditions), CATALOG).fits


def types(found: tuple[Fit, ...]) -> set[str]:
    return {fit.offer.type.name for fit in found}


# GPUs


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("H100:8", {"p5.48xlarge"}),
        ("h100:8", {"p5.48xlarge"}),
        ("A100:80GB:8", {"p4de.24xlarge"}),
        ("A100-80GB:8", {"p4de.24xlarge"}),
        ("A100:8", {"p4d.24xlarge", "p4de.24xlarge"}),
        ("A100:40GB", {"p4d.24xlarge"}),
        ("H100", {"p5.4xlarge", "p5.48xlarge"}),
        ("H100,H200:8", {"p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"}),
        ("24GB:4", {"g5.12xlarge", "g5.24xlarge", "g6.12xlarge", "g6.24xlarge"}),
        ("L4:4", {"g6.12xlarge", "g6.24xlarge"}),
        ("L40S:4", {"g6e.12xlarge", "g6e.24xlarge"}),
        ("A10G:4", {"g5.12xlarge", "g5.24xlarge"}),
        ("T4:4..", {"g4dn.12xlarge", "g4dn.metal"}),
        ("T4G:2", {"g5g.16xlarge", "g5g.metal"}),
        ("V100:32GB:8", {"p3dn.24xlarge"}),
        ("H200:8", {"p5e.48xlarge", "p5en.48xlarge"}),
        ("B200:8", {"p6-b200.48xlarge"}),
        ("RTXPRO6000:8", {"g7e.48xlarge"}),
        (
            "L4:1",
            {
                "g6.xlarge",
                "g6.2xlarge",
                "g6.4xlarge",
                "g6.8xlarge",
                "g6.16xlarge",
                "gr6.4xlarge",
                "gr6.8xlarge",
            },
        ),
        ("Inferentia2:12", {"inf2.48xlarge"}),
        ("Inferentia:16", {"inf1.24xlarge"}),
        ("AI100:8", {"dl2q.24xlarge"}),
        ("V520:4", {"g4ad.16xlarge"}),
        (
            "48GB",
            {
                f"g6e.{size}"
                for size in (
                    "xlarge",
                    "2xlarge",
                    "4xlarge",
                    "8xlarge",
                    "12xlarge",
                    "16xlarge",
                    "24xlarge",
                    "48xlarge",
                )
            },
        ),
        ("180GB", {"p6-b200.48xlarge"}),
        ("288GB:8", {"p6-b300.48xlarge"}),
        ("amd", set()),
        ("Trainium:16", {"trn1.32xlarge", "trn1n.32xlarge"}),
        ("trainium-1:1", {"trn1.2xlarge"}),
        ("16", set()),
    ],
)
def test_gpus_of_aws(gpu: str, expected: set[str]) -> None:
    assert types(fits({"gpu": gpu}, backends=("aws",))) == expected


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"name": "H100", "count": 8, "total_memory": "640GB"}, {"p5.48xlarge"}),
        ({"total_memory": "1TB..1.4TB", "count": "1..8"}, {"p5e.48xlarge", "p5en.48xlarge"}),
        ({"compute_capability": "10.0..11.0"}, {"p6-b200.48xlarge", "p6-b300.48xlarge"}),
        ({"vendor": "nvidia", "compute_capability": "8.0..8.0"}, {"p4d.24xlarge", "p4de.24xlarge"}),
    ],
)  # fmt: skip
def test_gpus_of_aws_as_a_mapping(gpu: dict[str, Any], expected: set[str]) -> None:
    assert types(fits({"gpu": gpu}, backends=("aws",))) == expected


def test_without_gpus_no_accelerator_is_paid_for() -> None:
    found = {fit.offer.type for fit in fits({"gpu": {"count": 0}}, backends=("aws",))}
    assert {each.gpu_count for each in found} == {0}
    assert {"c7i.8xlarge", "m7i.large", "t3a.large", "hpc7a.96xlarge"} <= {each.name for each in found}


def test_a_part_of_a_gpu_is_not_sold_for_one() -> None:
    parts = {name for _, name in CATALOG.types if name.startswith(("g6f.", "gr6f."))}
    assert len(parts) == 5
    assert not types(fits({"gpu": "1.."}, backends=("aws",))) & parts
    assert not types(fits({"gpu": "L4"}, backends=("aws",))) & parts


@pytest.mark.parametrize(
    ("name", "mib", "size"),
    [
        ("H100", 81559, 80),
        ("A100", 40536, 40),
        ("A100", 81251, 80),
        ("A10G", round(22.35 * GIB), 24),
        ("L40S", 46068, 48),
        ("H200", 143771, 141),
        ("B200", 183359, 180),
        ("B300", 275040, 288),
        ("B300", 262 * GIB, 288),
        ("V100", 16160, 16),
        ("V100", 32510, 32),
    ],
)
def test_what_a_driver_shows_reads_as_the_size_on_the_box(name: str, mib: int, size: int) -> None:
    assert nominal_mib(CATALOG.gpus[name], mib) == size * GIB


def test_the_memory_of_an_unknown_model_is_rounded_up() -> None:
    assert nominal_mib(GpuModel("X1", "nvidia"), 81559) == 80 * GIB


@given(st.sampled_from(sorted(CATALOG.gpus)), st.data())
def test_a_little_less_than_a_size_is_that_size(name: str, data: st.DataObject) -> None:
    gpu = CATALOG.gpus[name]
    size = data.draw(st.sampled_from(gpu.sizes_mib))
    assert nominal_mib(gpu, data.draw(st.integers(round(size * 0.92), round(size * 1.02)))) == size


@pytest.mark.parametrize(
    ("type_name", "backend", "names", "others"),
    [
        ("8x_H100-SXM_SECURE", "runpod", ("H100", "H100-SXM", "h100 sxm"), ("H100-PCIe", "H100NVL")),
        ("8x_H100-NVL_SECURE", "runpod", ("H100NVL", "H100-NVL"), ("H100", "H100-SXM")),
        ("1x_RTXA6000_SECURE", "runpod", ("A6000", "RTX-A6000", "RTX A6000"), ("RTX6000Ada", "A600")),
        ("gpu_1x_rtx6000", "lambda", ("RTX6000",), ("RTX6000Ada", "A6000")),
        ("gpu_1x_h100_pcie", "lambda", ("H100", "H100-PCIe"), ("H100-SXM",)),
        ("p4de.24xlarge", "aws", ("A100", "A100-80GB"), ("A100-40GB", "A10", "A100-SXM")),
        ("m7i.large", "aws", (), ("A100",)),
    ],
)  # fmt: skip
def test_the_names_a_gpu_goes_by(
    type_name: str, backend: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    each = CATALOG.types[backend, type_name]
    assert [gpu_has_name(each, name) for name in (*names, *others)] == [True] * len(names) + [False] * len(
        others
    )


def test_gpu_memory_that_is_not_known_is_not_taken_for_granted() -> None:
    assert "Standard_ND96isr_H100_v5" in types(fits({"gpu": "H100:8"}, backends=("azure",)))
    assert fits({"gpu": "H100:80GB:8"}, backends=("azure",)) == ()


def test_hosts_with_arm_are_offered_when_asked_for_and_when_their_gpu_is_named() -> None:
    arm = {each.name for each in CATALOG.types.values() if each.arch == "arm"}
    google = {"a4x-highgpu-4g", "a4x-maxgpu-4g-metal"}
    graviton = {f"g5g.{size}" for size in ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge", "metal")}
    cards = {"gpu_1x_gh200", "BM.GPU.GB200.4", "BM.GPU.GB300.4"} | google | graviton
    assert {each.name for each in CATALOG.types.values() if each.arch == "arm" and each.gpu} == cards
    assert types(fits({"gpu": "nvidia:1..8"})) & arm == set()
    assert types(fits({"gpu": "GH200"})) == {"gpu_1x_gh200"}
    assert types(fits({"gpu": "nvidia:1..8", "cpu": "arm:2.."})) == cards
    assert types(fits({}, instance_types=("gpu_1x_gh200",))) == {"gpu_1x_gh200"}
    assert fits({"gpu": "GH200", "cpu": "x86:2.."}) == ()


def test_an_accelerator_that_is_no_gpu_is_offered_when_named() -> None:
    assert "trn1.32xlarge" not in types(fits({"gpu": "1..16"}))
    assert "trn1.32xlarge" not in types(fits({}))
    assert types(fits({}, instance_types=("trn1.32xlarge",))) == {"trn1.32xlarge"}


# The host


def test_defaults_ask_for_two_cpus_and_8gb() -> None:
    assert types(fits({}, backends=("aws",), instance_types=("t3.*", "m7i.large"))) == {
        "m7i.large", "t3.large", "t3.xlarge", "t3.2xlarge",
    }  # fmt: skip
    small = {"memory": "1GB", "cpu": 1}
    assert "t3.micro" in types(fits(small, backends=("aws",), instance_types=("t3.*",)))


def test_memory_that_is_not_known_passes_the_default_and_no_written_condition() -> None:
    unknown = "1x_RTX4090_SECURE"
    assert unknown in types(fits({"gpu": "RTX4090"}))
    assert fits({"gpu": "RTX4090", "memory": "8GB"}) == ()


def test_one_number_is_a_minimum_and_a_range_has_an_end() -> None:
    family = {name for _, name in CATALOG.types if name.startswith("m7i.")}
    small = {"m7i.large", "m7i.xlarge", "m7i.2xlarge"}
    assert (
        types(fits({"cpu": 16, "memory": 64}, backends=("aws",), instance_types=("m7i.*",))) == family - small
    )
    found = types(fits({"cpu": "2..4"}, backends=("aws",), instance_types=("m7i.*",)))
    assert found == {"m7i.large", "m7i.xlarge"}


def test_disk_is_made_to_measure_and_excludes_nothing() -> None:
    assert fits({"gpu": "H100:8", "disk": "20TB"}) == fits({"gpu": "H100:8"})


# The place


def test_local_zones_only_when_named() -> None:
    here = wanted({"gpu": "H100:8"}, backends=("aws",), regions=("us-east-1",))
    assert not any(fit.offer.local_zone for fit in judge(here, CATALOG).fits)
    for name in ("use1-atl2-az1", "USE1-ATL2-AZ1", "us-east-1-atl-2a", "us-east-1-atl-2"):
        found = fits({"gpu": "H100:8"}, backends=("aws",), zones=(name,))
        assert {fit.offer.zone for fit in found} == {"use1-atl2-az1"}, name


def test_a_zone_id_is_one_zone_and_a_zone_name_all_of_its_region() -> None:
    one = fits({"gpu": "H100:8"}, backends=("aws",), zones=("use1-az4",))
    named = fits({"gpu": "H100:8"}, backends=("aws",), zones=("us-east-1a",))
    region = fits({"gpu": "H100:8"}, backends=("aws",), regions=("us-east-1",))
    assert {fit.offer.zone for fit in one} == {"use1-az4"}
    assert named == region
    assert len({fit.offer.zone for fit in named}) > 1


def test_gcp_zone_names_are_exact() -> None:
    found = fits({"gpu": "H100:8"}, backends=("gcp",), zones=("us-central1-c",))
    assert {fit.offer.zone for fit in found} == {"us-central1-c"}


def test_a_zone_does_not_cover_backends_without_zones() -> None:
    assert {fit.offer.type.backend for fit in fits({"gpu": "1.."}, zones=("us-east-1a",))} == {"aws"}


def test_a_zone_that_is_written_twice_is_offered_once() -> None:
    found = fits(backends=("aws",), zones=("use1-az4", "USE1-AZ4"), instance_types=("g4ad.xlarge",))
    assert [fit.offer.zone for fit in found] == ["use1-az4"]


def test_a_region_that_is_not_known_is_not_taken_for_granted() -> None:
    assert fits({"gpu": "H100:8"}, backends=("oci",))
    assert fits({"gpu": "H100:8"}, backends=("oci",), regions=("us-ashburn-1",)) == ()


def test_backends_without_a_driver_are_searched_only_when_written() -> None:
    assert "verda" not in {fit.offer.type.backend for fit in fits({"gpu": "1.."})}
    assert {fit.offer.type.backend for fit in fits({"gpu": "1.."}, backends=("verda",))} == {"verda"}


# The price


def test_spot_prices_only_where_asked_for() -> None:
    asked = {"resources": {"gpu": "H100:8"}, "backends": ("aws",)}
    assert {fit.spot for fit in fits(**asked)} == {False}
    assert {fit.spot for fit in fits(**asked, spot_policy="spot")} == {True}
    assert {fit.spot for fit in fits(**asked, spot_policy="auto")} == {True, False}


def test_an_unpriced_offer_comes_last_and_passes_no_price_limit() -> None:
    found = fits({"gpu": "H200:8"}, backends=("aws",))
    unpriced = [fit.price is None for fit in found]
    assert True in unpriced
    assert unpriced == sorted(unpriced)
    assert all(fit.price is not None for fit in fits({"gpu": "H200:8"}, backends=("aws",), max_price=1000))


def test_fewest_gpus_first_when_their_number_is_open_and_cheapest_first_otherwise() -> None:
    open_ended = [fit.offer.type.gpu_count for fit in fits({"gpu": "24GB"}) if fit.price is not None]
    assert open_ended == sorted(open_ended)
    assert open_ended[0] < open_ended[-1]
    closed = [fit.price for fit in fits({"gpu": "24GB:1..8"}) if fit.price is not None]
    assert closed == sorted(closed)


# All of it


def _in(value: float | None, bounds: Range | None, *, when_unknown: bool = False) -> bool:
    if bounds is None:
        return True
    return when_unknown if value is None else value in bounds


def _plainly(want: MachineQuery, offer: Offer, spot: bool) -> bool:
    """The rules once more, each in a line, without a word about why."""
    each, gpu = offer.type, want.resources.gpu
    price = offer.spot_price if spot else offer.price
    own = price if spot or offer.price_of is None else None
    exact = each.name.lower() in [name.lower() for name in want.instance_types]
    by_gpu = any(gpu_has_name(each, name) for name in gpu.names)
    by_host = exact or (by_gpu and each.gpu is not None and each.gpu.arm_only)
    arch = want.resources.cpu.arch or (each.arch if by_host else "x86")
    ok = [
        each.backend in want.backends,
        not want.regions or offer.region in want.regions,
        any(names_zone(zone, offer) for zone in want.zones) if want.zones else not offer.local_zone,
        not want.instance_types or any(fnmatch(each.name.lower(), p.lower()) for p in want.instance_types),
        not spot or price is not None or (not offer.listed and want.spot_policy == "spot"),
        want.max_price is None or (own is not None and own <= want.max_price),
        each.arch == arch,
        _in(each.vcpus, want.resources.cpu.count),
        _in(each.memory_mib, want.resources.memory_mib, when_unknown=not want.memory_written),
    ]
    if each.gpu is None:
        return all(ok) and not gpu.count.min
    memory = None if each.gpu_memory_mib is None else nominal_mib(each.gpu, each.gpu_memory_mib)
    ok += [
        not gpu.names or by_gpu,
        gpu.vendor in (None, each.gpu.vendor),
        each.gpu.kind == "gpu" or by_gpu or exact,
        _in(each.gpu_count, gpu.count),
        _in(memory, gpu.memory_mib),
        _in(memory and memory * each.gpu_count, gpu.total_memory_mib),
        _in(each.gpu.compute_capability, gpu.compute_capability),
    ]
    return all(ok)


@st.composite
def conditions(draw: st.DrawFn) -> MachineQuery:
    def some(strategy: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | strategy)

    names = st.lists(
        st.sampled_from(["H100", "A100", "a100-80gb", "L4", "GH200", "MI300X", "Trainium"]), max_size=2
    )
    sizes = st.sampled_from(["24GB", "40GB..80GB", "80GB", "..48GB", "100GB.."])
    gpu = {
        "vendor": some(st.sampled_from(["nvidia", "amd"])),
        "name": draw(names),
        "count": draw(st.sampled_from(["0..", "1..", "8", "1..8", "2..4", "0"])),
        "memory": some(sizes),
        "total_memory": some(st.sampled_from(["160GB..", "..320GB"])),
        "compute_capability": some(st.sampled_from([8.0, 9.0])),
    }
    resources = {
        "gpu": gpu,
        "cpu": some(st.sampled_from(["4", "16..", "arm:2..", "x86:2..64"])),
        "memory": some(st.sampled_from(["16GB", "64GB..512GB", "1TB.."])),
    }
    backends = draw(
        st.lists(st.sampled_from(CATALOG.backends), unique=True, min_size=1)
        | st.just(usual_backends(CATALOG))
    )
    zones = ["us-east-1b", "use1-az4", "us-central1-a", "usw2-lax1-az1"]
    patterns = ["p5*", "g?.*", "gpu_1x_gh200", "TRN1.*", "a2-*"]

    def few(words: list[str]) -> tuple[str, ...]:
        return tuple(draw(st.lists(st.sampled_from(words), max_size=2)))

    return MachineQuery(
        Resources.model_validate({key: value for key, value in resources.items() if value is not None}),
        tuple(backends),
        regions=few(["us-east-1", "us-central1", "eu-north1"]),
        zones=few(zones),
        instance_types=few(patterns),
        spot_policy=draw(st.sampled_from(["spot", "on-demand", "auto"])),
        max_price=some(st.sampled_from([0.0, 1.0, 30.0, 100.0])),
    )


@settings(max_examples=samples.some(60, 4), deadline=None)
@given(conditions())
def test_what_fits_is_what_the_rules_say_and_all_else_has_a_reason(want: MachineQuery) -> None:
    def key(offer: Offer, spot: bool) -> tuple[Any, ...]:
        return (offer.type.backend, offer.type.name, offer.region, offer.zone, spot)

    judgement = judge(want, FEW)
    found = {key(fit.offer, fit.spot) for fit in judgement.fits}
    assert len(found) == len(judgement.fits)
    others = (offer for each in FEW.types.values() for offer in unlisted_offers(FEW, each, want.zones))
    expected = {
        key(offer, spot)
        for offer in chain(FEW.offers(), others)
        for spot in (False, True)
        if (want.spot_policy != "spot" if not spot else want.spot_policy != "on-demand")
        and _plainly(want, offer, spot)
    }
    assert found == expected
    assert all(misses and all(miss.distance > 0 for miss in misses) for _, misses in judgement.misses)


@settings(max_examples=samples.some(40, 4), deadline=None)
@given(conditions())
def test_offers_come_in_order(want: MachineQuery) -> None:
    def key(fit: Fit) -> tuple[Any, ...]:
        each: InstanceType = fit.offer.type
        gpus = each.gpu_count if want.fewest_first else 0
        unsure = fit.price_of is not None or (fit.price is None and not fit.offer.listed)
        return (fit.price is None, gpus, fit.price or 0, unsure, each.backend, each.name)

    found = judge(want, FEW).fits
    assert all(key(one) <= key(other) for one, other in pairwise(found))


@settings(max_examples=samples.some(40, 4), deadline=None)
@given(conditions())
def test_near_misses_come_nearest_first_and_hold_every_type_that_does_not_fit(want: MachineQuery) -> None:
    judgement = judge(want, FEW)
    found = near_misses(judgement)
    assert [miss.failed for miss in found] == sorted(miss.failed for miss in found)
    missed = {(fit.offer.type.backend, fit.offer.type.name) for fit, _ in judgement.misses}
    assert {(miss.backend, miss.instance_type) for miss in found} == missed


def test_a_near_miss_tells_every_value_that_was_found() -> None:
    judgement = judge(wanted({"gpu": "H100:8"}, backends=("aws",), max_price=50), CATALOG)
    assert judgement.fits == ()
    nearest = near_misses(judgement)[0]
    assert nearest.instance_type == "p5.48xlarge"
    (reason,) = nearest.reasons
    assert (reason.constraint, reason.required, reason.values[0]) == ("price", "at most $50.00", "$55.04")
    assert nearest.cheapest.price == 55.04
