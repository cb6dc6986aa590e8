"""What jobs need of an interconnect, as data."""

from __future__ import annotations

from orch.catalog.fabrics import fabric, fabrics


def test_efa_locks_memory_and_passes_its_devices_in() -> None:
    efa = fabric("efa", "p5.48xlarge")
    assert efa is not None
    assert efa.devices == ("/dev/infiniband",)
    assert efa.optional_devices == ("/dev/gdrdrv",)
    assert efa.ulimits["memlock"] == -1
    assert efa.capabilities == ("IPC_LOCK",)
    assert efa.env == {"FI_EFA_USE_HUGE_PAGE": "0"}


def test_some_types_need_more() -> None:
    trainium = fabric("efa", "trn2.48xlarge")
    assert trainium is not None
    assert trainium.env["FI_PROVIDER"] == "efa"
    assert trainium.optional_devices == ()


def test_no_interconnect_lets_a_job_past_the_packet_filter_of_its_node() -> None:
    types = ("p5.48xlarge", "a3-highgpu-8g", "a3-megagpu-8g", "a3-ultragpu-8g", "a4x-highgpu-4g")
    known = [each for name in fabrics() for type_ in types if (each := fabric(name, type_)) is not None]
    assert {one for each in known for one in each.capabilities} == {"IPC_LOCK"}


def test_each_entry_has_a_source() -> None:
    for name in fabrics():
        known = fabric(name, "p5.48xlarge")
        assert known is not None
        assert all(known.sources)


def test_plain_tcp_names_the_transport() -> None:
    ethernet = fabric("ethernet")
    assert ethernet is not None
    assert ethernet.words() == ("jobs get NCCL_NET=Socket",)


def test_a_fabric_that_is_not_known_needs_nothing() -> None:
    assert fabric("carrier-pigeon") is None
