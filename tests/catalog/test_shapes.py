"""The shapes of GCP types, their images, software and fabrics, as data."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.catalog.fabrics import fabric
from orch.catalog.gcp.machines import gcp_image, gcp_images, network_quota, shapes, software, type_quota
from orch.catalog.load import catalog

TYPES = {
    name: each for (backend, name), each in catalog(Path("/nonexistent")).types.items() if backend == "gcp"
}


def test_every_type_has_a_shape_and_an_image() -> None:
    assert set(shapes()) == set(TYPES)
    assert [name for name, each in TYPES.items() if gcp_image(each, shapes()[name].fabric) is None] == []


@pytest.mark.parametrize("name", sorted(shapes()))
def test_a_shape_is_sound(name: str) -> None:
    each = shapes()[name]
    assert 1 <= each.hosts <= 2
    assert 1300 <= each.host_mtu <= 8896  # what a VPC takes
    assert bool(each.datas) == bool(each.data_mtu)
    assert bool(each.rdmas) == bool(each.profile) == bool(each.rdma_mtu)
    assert each.fast == bool(each.datas or each.rdmas) == bool(each.gbps)
    assert (each.placement == "topology") == bool(each.domain and each.topology)
    assert fabric(each.fabric, name) is not None


@pytest.mark.parametrize("name", ["tcpx", "tcpxo", "gib"])
def test_fast_fabrics_say_what_jobs_need(name: str) -> None:
    known = fabric(name, "a3-ultragpu-8g")
    assert known is not None
    assert known.mounts
    assert known.ulimits == {"memlock": -1}
    assert "IPC_LOCK" in known.capabilities
    assert all(known.sources)
    assert known.env["LD_LIBRARY_PATH"].split(":")[0] in {mount.split(":")[1] for mount in known.mounts} | {
        f"{mount.split(':')[1]}/lib64" for mount in known.mounts
    }


def test_a3_mega_names_its_nine_interfaces() -> None:
    known = fabric("tcpxo", "a3-megagpu-8g")
    assert known is not None
    assert known.env["NCCL_FASTRAK_CTRL_DEV"] == known.env["NCCL_SOCKET_IFNAME"] == "enp0s12"
    assert len(set(known.env["NCCL_FASTRAK_IFNAME"].split(","))) == shapes()["a3-megagpu-8g"].datas
    assert "/dev/aperture_devices:/dev/aperture_devices" in known.mounts


def test_a3_high_names_its_five_interfaces() -> None:
    known = fabric("tcpx", "a3-highgpu-8g")
    assert known is not None
    names = known.env["NCCL_GPUDIRECTTCPX_SOCKET_IFNAME"].split(",")
    assert len(names) == shapes()["a3-highgpu-8g"].datas
    for key in ("TX", "RX"):
        bound = known.env[f"NCCL_GPUDIRECTTCPX_{key}_BINDINGS"].split(";")
        assert [each.split(":")[0] for each in bound] == names


def test_gib_fails_without_its_plugin_and_is_tuned_by_type() -> None:
    ultra, blackwell, rack = (
        fabric("gib", name) for name in ("a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g")
    )
    assert ultra is not None
    assert blackwell is not None
    assert rack is not None
    assert {each.env["NCCL_NET"] for each in (ultra, blackwell, rack)} == {"gIB"}
    assert ultra.env["NCCL_TUNER_CONFIG_PATH"] != blackwell.env["NCCL_TUNER_CONFIG_PATH"]
    assert rack.env["NCCL_MNNVL_ENABLE"] == "2"


@pytest.mark.parametrize("name", sorted(name for name, each in shapes().items() if each.fast))
def test_fast_types_start_a_plugin(name: str) -> None:
    assert "plugin" in software(shapes()[name].fabric, name)


def test_quotas_are_those_of_the_gpu() -> None:
    spot, plain = type_quota("g2-standard-8", "spot"), type_quota("a2-ultragpu-8g", "on-demand")
    assert spot is not None
    assert plain is not None
    assert (spot.metric, plain.metric) == ("PREEMPTIBLE_NVIDIA_L4_GPUS", "NVIDIA_A100_80GB_GPUS")
    assert type_quota("a4-highgpu-8g", "on-demand") is None
    assert network_quota().metric == "NETWORKS"


def test_only_tcpx_boots_container_optimized_os() -> None:
    assert [row.fabric for row in gcp_images() if row.os == "cos"] == ["tcpx"]


def price(name: str, zone: str = "us-central1-a") -> float | None:
    offers = catalog(Path("/nonexistent")).lists["gcp"].offers
    return next(each.price for each in offers if (each.type.name, each.zone) == (name, zone))


def test_prices_of_a_family_grow_with_what_its_machines_have() -> None:
    assert price("g2-standard-24") == pytest.approx((price("g2-standard-96") or 0) / 4)
    # One L4 and so many times four vCPUs: from four to eight, and from eight to twelve, it is the same step.
    step = (price("g2-standard-8") or 0) - (price("g2-standard-4") or 0)
    assert (price("g2-standard-12") or 0) - (price("g2-standard-8") or 0) == pytest.approx(step)
    assert price("n2-standard-2") == pytest.approx((price("n2-standard-8") or 0) / 4)
    assert price("a2-ultragpu-1g") == pytest.approx((price("a2-ultragpu-8g") or 0) / 8)


def test_the_sum_of_parts_is_what_the_list_has_where_it_has_both() -> None:
    for zone in ("us-central1-a", "asia-northeast1-a", "europe-west4-b"):
        assert (price("a2-highgpu-1g", zone) or 0) * 8 == pytest.approx(
            price("a2-highgpu-8g", zone), abs=0.01
        )


def test_types_without_parts_are_unpriced_in_the_zones_of_their_family() -> None:
    assert price("e2-standard-2") is None
    assert price("n2-highmem-8") is None
    assert price("a2-megagpu-16g") is None


def test_siblings_have_the_networks_of_their_family_and_disks_of_their_own() -> None:
    known = shapes()
    assert (known["a2-ultragpu-2g"].disks, known["a3-highgpu-4g"].disks) == (2, 8)
    assert not known["a3-highgpu-4g"].fast
    assert known["e2-standard-4"].placement == "none"
    quota = type_quota("a2-megagpu-16g", "on-demand")
    assert quota is not None
    assert quota.metric == "NVIDIA_A100_GPUS"
