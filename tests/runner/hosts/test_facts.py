"""What a host says of itself, recorded from tools and servers, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.runner.hosts import parse_hardware
from orch.runner.hosts.facts import parse
from orch.runner.hosts.host_facts import Gpu, HostFacts, RdmaPort

DATA = Path(__file__).parent / "data"


def recorded(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def facts(name: str) -> HostFacts:
    found = parse(recorded(name))
    assert found is not None
    return found


def known(**answers: str | None) -> tuple[Gpu, ...]:
    """What `devices.gpus` makes of some answers, the others missing."""
    nothing = dict.fromkeys(("nvidia", "nvidia_head", "amd_smi", "gaudi", "tt_smi"))
    return parse_hardware.gpus(**{**nothing, "amd": "", "tt": "", **answers})  # type: ignore[arg-type]


def test_a_server_with_eight_gpus_is_told_whole() -> None:
    found = facts("h100")
    assert (found.os, found.arch, found.cpus, found.memory_mib) == ("Linux", "x86_64", 2, 24105)
    assert found.distribution == "Debian GNU/Linux 12 (bookworm)"
    assert (found.root, found.forwarding, found.memlock_kib) == ("sudo", "yes", 8192)
    assert found.docker is not None
    assert found.docker.version == "20.10.24+dfsg1"
    assert (found.docker.root, found.docker.free_mib) == ("/var/lib/docker", 204799)
    assert found.docker.size_mib == 204800
    assert "nvidia" in found.docker.runtimes
    assert found.nvidia_toolkit == "1.16.2"
    assert [(d.name, d.size_gib, d.rotational) for d in found.disks] == [("vda", 256, True)]
    assert found.owns("10.99.26.5")
    assert not found.owns("10.99.26.6")


def test_registered_are_the_lasting_facts_only() -> None:
    assert facts("h100").registered() == {
        "arch": "x86_64",
        "cpus": 2,
        "docker": True,
        "gpu_count": 8,
        "gpu_driver": "550.54.15",
        "gpu_memory_mib": 81559,
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "gpu_vendor": "nvidia",
        "machine_id": "eb244f881917dcf17348e0ae0f1cd94d",
        "memory_mib": 24105,
    }


@pytest.mark.parametrize(
    ("name", "gpu", "on_bus"),
    [
        (
            "h100",
            Gpu(
                vendor="nvidia",
                name="NVIDIA H100 80GB HBM3",
                count=8,
                memory_mib=81559,
                driver="550.54.15",
                toolkit="12.4",
            ),
            8,
        ),
        (
            "mi300x",
            Gpu(vendor="amd", name="AMD Instinct MI300X", count=8, memory_mib=196592, driver="6.8.5"),
            8,
        ),
        ("gaudi2", Gpu(vendor="intel", name="HL-225", count=8, memory_mib=98304, driver="1.18.0-ee698fb"), 8),
        ("wormhole", Gpu(vendor="tenstorrent", name="n300", count=4, memory_mib=12288, driver="1.29"), 4),
    ],
)
def test_accelerators_of_each_vendor_are_counted_by_driver_and_by_bus(
    name: str, gpu: Gpu, on_bus: int
) -> None:
    found = facts(name)
    assert found.gpus == (gpu,)
    assert found.pci_count(gpu.vendor) == on_bus


def test_the_cuda_version_is_read_from_the_heading_of_old_and_new_drivers() -> None:
    assert parse_hardware.cuda_version(recorded("h100")) == "12.4"
    assert parse_hardware.cuda_version(recorded("driver-610")) == "13.3"
    # A process of a job may be called anything.
    table = "| NVIDIA-SMI 999 |\n| Processes: |\n|  0  N/A  N/A  7  C  CUDA Version: 10.0  8MiB |"
    assert parse_hardware.cuda_version(table) is None
    assert parse_hardware.cuda_version("NVIDIA-SMI has failed") is None


def test_amd_smi_of_rocm_7_with_warnings_before_its_data() -> None:
    (gpu,) = known(amd_smi=recorded("amd-smi-rocm7"))
    assert gpu == Gpu(vendor="amd", name="AMD Instinct MI350X", count=2, memory_mib=294896, driver="6.18.3")


def test_rocm_smi_in_place_of_amd_smi() -> None:
    (gpu,) = known(amd_smi=recorded("rocm-smi"))
    assert gpu == Gpu(
        vendor="amd", name="AMD Instinct MI300X OAM", count=1, memory_mib=196592, driver="6.8.5"
    )


def test_amd_gpus_without_a_tool_are_known_from_the_kernel() -> None:
    text = "kfd\nmodule 6.10.5\nnode 206141652992\nnode 206141652992\nproduct AMD Instinct MI300X OAM\n"
    (gpu,) = known(amd=text)
    assert gpu == Gpu(
        vendor="amd", name="AMD Instinct MI300X OAM", count=2, memory_mib=196592, driver="6.10.5"
    )


def test_a_tenstorrent_chip_behind_another_one_adds_memory_and_no_card() -> None:
    found = known(tt_smi=recorded("tt-smi-n300"))
    assert [(gpu.name, gpu.count, gpu.memory_mib, gpu.driver) for gpu in found] == [
        ("n300", 1, 24576, "2.0.0"),
        ("p150b", 1, 32768, "2.0.0"),
    ]


def test_what_nvidia_smi_says_without_a_gpu_is_not_taken_for_one() -> None:
    assert known(nvidia="No devices were found\n") == ()
    assert known(nvidia="GB10, [N/A], 580.95.05\n")[0].memory_mib is None


def test_different_gpus_of_one_host_are_kept_apart() -> None:
    found = known(nvidia="NVIDIA A100, 40960, 550.1\nNVIDIA L4, 23034, 550.1\nNVIDIA A100, 40960, 550.1\n")
    assert [(gpu.name, gpu.count) for gpu in found] == [("NVIDIA A100", 2), ("NVIDIA L4", 1)]
    registered = HostFacts(gpus=found).registered()
    assert registered["gpu_name"] == "NVIDIA A100, NVIDIA L4"
    assert (registered["gpu_count"], registered["gpu_memory_mib"]) == (3, 23034)


def test_only_accelerators_count_on_the_bus() -> None:
    (seen,) = parse_hardware.pci_devices(recorded("lspci"))
    assert (seen.vendor, seen.count) == ("nvidia", 2)
    assert seen.name == "NVIDIA Corporation GH100 [H100 SXM5 80GB]"


@pytest.mark.parametrize(
    "line",
    [
        "sys 0000:18:00.0 0x120000 0x1da3 0x1020",
        "0000:18:00.0 1200: 1da3:1020 (rev 01)",
        "18:00.0 Class 1200: 1da3:1020",
    ],
)
def test_the_bus_is_read_from_the_kernel_and_from_terse_forms_of_lspci(line: str) -> None:
    assert [(seen.vendor, seen.count) for seen in parse_hardware.pci_devices(line)] == [("intel", 1)]


def test_a_bond_a_vlan_and_a_bridge_with_a_cable_are_as_physical_as_what_they_are_built_on() -> None:
    found, told, _ = parse_hardware.interfaces(recorded("net-server"))
    by_name = {interface.name: interface for interface in found}
    assert told
    assert {name: each.kind for name, each in by_name.items()} == {
        "bond0": "physical",
        "br-4f1c0a9b8d7e": "bridge",
        "docker0": "bridge",
        "eno1": "physical",
        "eno2": "physical",
        "eno3": "physical",
        "ib0": "physical",
        "lo": "loopback",
        "storage": "physical",
        "veth3a1b2c3": "virtual",
        "vmbr0": "physical",
        "wg0": "virtual",
    }
    assert (by_name["bond0"].speed_mbps, by_name["bond0"].rdma) == (200000, ("mlx5_1", "mlx5_0"))
    assert (by_name["storage"].speed_mbps, by_name["storage"].mtu) == (200000, 9000)
    assert by_name["vmbr0"].speed_mbps == 1000
    assert by_name["bond0"].addresses == ("10.20.0.11/24", "fd00:20::11/64")
    assert by_name["wg0"].addresses == (), "an address with a peer says no network"


def test_rdma_ports_of_every_layer_with_their_state() -> None:
    ports, files = parse_hardware.rdma(recorded("rdma-mixed"))
    assert files
    assert [(port.device, port.state, port.layer) for port in ports] == [
        ("mlx5_0", "ACTIVE", "InfiniBand"),
        ("mlx5_1", "DOWN", "InfiniBand"),
        ("rocep1s0", "ACTIVE", "Ethernet"),
        ("efa_0", "ACTIVE", "Unspecified"),
    ]
    assert ports[0] == RdmaPort(
        device="mlx5_0", port=1, state="ACTIVE", layer="InfiniBand", rate="400 Gb/sec (4X NDR)"
    )


def test_a_host_without_any_tool_is_still_described() -> None:
    found = parse("@@now\n1795278547\n\n@@= 0\n@@root no sudo: a password is required\n@@= 0\n")
    assert found is not None
    assert (found.root, found.root_trouble) == ("no", "sudo: a password is required")
    assert (found.gpus, found.docker, found.forwarding) == ((), None, None)


def test_a_login_that_runs_nothing_is_no_host() -> None:
    assert parse("This account is currently not available.\n") is None


def test_output_that_breaks_off_costs_only_what_is_missing() -> None:
    whole = recorded("h100")
    for length in range(0, len(whole), 97):
        found = parse(whole[:length])
        assert found is None or found.os in ("", "Linux")


def test_a_tool_that_did_not_answer_in_time_is_kept_as_that() -> None:
    found = parse("@@now\n1\n@@= 0\n@@nvidia\n\n@@= 124\n")
    assert found is not None
    tool = found.tool("nvidia-smi")
    assert tool is not None
    assert tool.exit_code == 124
    assert found.gpus == ()


@pytest.mark.parametrize(
    ("sent", "received", "offset"),
    [
        (100.0, 101.0, 0.0),
        (90.0, 95.0, 5.3),  # the host ended later than we heard from it
        (110.0, 115.0, -9.8),
        (99.0, 140.0, 0.0),  # a slow round trip tells little
    ],
)
def test_a_slow_way_never_makes_a_clock_look_wrong(sent: float, received: float, offset: float) -> None:
    found = parse("@@now\n100.2\n@@= 0\n@@now\n100.3\n@@= 0\n", sent=sent, received=received)
    assert found is not None
    assert found.clock_offset_s == offset


def test_a_date_without_fractions_is_understood() -> None:
    found = parse("@@now\n700.%N\n@@= 0\n", sent=100.0, received=101.0)
    assert found is not None
    assert found.clock_offset_s == 599.0
