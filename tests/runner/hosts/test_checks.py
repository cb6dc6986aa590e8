"""Judging one host: what is measured, what is said of it, and under which code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orch.runner.errors import LoginRefused
from orch.runner.hosts.checks.requirements import CHECKS, CODE_OF, judge_host
from orch.runner.hosts.checks.types import (
    CheckOptions,
    CheckResult,
    ContainerProbe,
    HostObservation,
    MeshView,
    Result,
)
from orch.runner.hosts.facts import parse
from orch.runner.hosts.host_facts import HostFacts, HostInterface, PciDevices, RdmaPort, Tool
from orch.runner.hosts.network import ClusterAddress, ClusterNetwork, NetworkProblem
from orch.spec.codes import CODES

DATA = Path(__file__).parent / "data"
ALONE = ClusterNetwork("10.0.0.0/24", (ClusterAddress("gpu1", "10.0.0.1", "eth1", 1500),))
TRIED = ContainerProbe(image="orch/job", gpus=8)


def facts(name: str = "h100", **changes: Any) -> HostFacts:
    found = parse((DATA / f"{name}.txt").read_text())
    assert found is not None
    return found.model_copy(update=changes)


def docker(name: str = "h100", **changes: Any) -> HostFacts:
    found = facts(name)
    assert found.docker is not None
    return found.model_copy(update={"docker": found.docker.model_copy(update=changes)})


def judged(
    found: HostFacts | None, wanted: CheckOptions | None = None, **seen: Any
) -> dict[str, CheckResult]:
    observed = HostObservation(
        "gpu1", facts=found, connected_s=0.2, open_ports=(), network=ALONE, container=TRIED
    )
    return {each.id: each for each in judge_host(replace(observed, **seen), wanted or CheckOptions())}


def test_the_checks_and_their_codes_are_those_of_the_reference_in_its_order() -> None:
    assert [check.id for check in CHECKS] == [
        *("ssh.connect", "ssh.forwarding", "sudo.nopasswd"),
        *("host.os", "host.unique", "host.disk", "host.clock"),
        *("docker.engine", "nvidia.driver", "nvidia.toolkit", "nvidia.container"),
        *("amd.driver", "gaudi.driver", "gaudi.runtime", "tt.driver", "tt.hugepages"),
        *("fw.external", "net.internal", "net.mesh", "rdma.devices", "gpu.health"),
    ]
    assert list(CODE_OF.values()) == [f"ORCH{code}" for code in range(364, 385)]
    assert all(check.id in CODES[CODE_OF[check.id]] for check in CHECKS)


def test_a_server_with_all_it_needs_passes_all_that_applies() -> None:
    found = judged(facts(clock_offset_s=0.0))
    assert {each.id for each in found.values() if each.result is not Result.PASS} == {
        *("amd.driver", "gaudi.driver", "gaudi.runtime", "tt.driver", "tt.hugepages"),
        *("net.mesh", "rdma.devices"),
    }
    assert all(each.hint is None and each.code is None for each in found.values())


@pytest.mark.parametrize("name", ["h100", "mi300x", "gaudi2", "wormhole"])
def test_only_the_checks_of_the_vendor_at_hand_are_run(name: str) -> None:
    own = {"h100": "nvidia", "mi300x": "amd", "gaudi2": "gaudi", "wormhole": "tt"}[name]
    for each in judged(facts(name)).values():
        vendor = each.id.partition(".")[0]
        if vendor in ("nvidia", "amd", "gaudi", "tt"):
            assert each.result is (Result.PASS if vendor == own else Result.SKIPPED), each


def test_without_a_login_everything_else_is_skipped_and_says_why() -> None:
    error = LoginRefused("gpu1 refuses the login of ops", where="ops@10.0.0.1:22", hint="authorise the key")
    found = judged(None, error=error)
    connect = found.pop("ssh.connect")
    assert (connect.result, connect.code, connect.hint) == (Result.FAIL, "ORCH364", "authorise the key")
    assert connect.detail == "gpu1 refuses the login of ops (ops@10.0.0.1:22)"
    assert {(each.result, each.detail) for each in found.values()} == {(Result.SKIPPED, "needs ssh.connect")}


def _cuda(version: str | None, driver: str) -> HostFacts:
    found = facts()
    return found.model_copy(
        update={
            "gpus": tuple(g.model_copy(update={"toolkit": version, "driver": driver}) for g in found.gpus)
        }
    )


def _tools(name: str, *tools: Tool, **changes: Any) -> HostFacts:
    return facts(name, tools=tools, **changes)


SMI_FAILED = Tool(
    name="nvidia-smi", exit_code=9, output="NVIDIA-SMI has failed because it couldn't communicate"
)
MESH = CheckOptions(cluster=True)
IB = RdmaPort(device="mlx5_0", port=1, state="ACTIVE", layer="InfiniBand", rate="400 Gb/sec (4X NDR)")
IB_DOWN = IB.model_copy(update={"state": "DOWN"})


@pytest.mark.parametrize(
    ("found", "check", "code", "detail", "hint"),
    [
        (
            facts(forwarding="no"),
            "ssh.forwarding",
            "ORCH365",
            "AllowTcpForwarding no",
            "AllowTcpForwarding yes",
        ),
        (facts(forwarding="remote"), "ssh.forwarding", "ORCH365", "remote", "systemctl reload ssh"),
        (
            facts(root="no", root_trouble="sudo: a password is required"),
            "sudo.nopasswd",
            "ORCH366",
            "sudo: a password is required",
            "NOPASSWD: ALL",
        ),
        (facts(arch="ppc64le"), "host.os", "ORCH367", "Linux ppc64le", "another host"),
        (facts(os="Darwin"), "host.os", "ORCH367", "Darwin", "another host"),
        (facts(machine_id=None), "host.unique", "ORCH368", "missing", "systemd-machine-id-setup"),
        (docker(free_mib=49 * 1024), "host.disk", "ORCH369", "49.0 GB free in /var/lib/docker", "data-root"),
        (
            docker(version=None, trouble="Cannot connect to the Docker daemon"),
            "docker.engine",
            "ORCH371",
            "Cannot connect",
            "systemctl enable --now docker",
        ),
        (facts(docker=None), "docker.engine", "ORCH371", "no docker command", "docs.docker.com"),
        (
            _tools("h100", SMI_FAILED, gpus=()),
            "nvidia.driver",
            "ORCH372",
            "8 NVIDIA GPUs on the bus, but",
            "530.30",
        ),
        (_tools("h100", gpus=()), "nvidia.driver", "ORCH372", "there is no nvidia-smi", "nvidia-driver"),
        (_cuda("11.8", "520.61.05"), "nvidia.driver", "ORCH372", "CUDA 12.1 or later is needed", "530.30"),
        (_cuda(None, "525.60.13"), "nvidia.driver", "ORCH372", "driver 525.60.13, CUDA unknown", "530.30"),
        (
            docker(runtimes=("runc",)),
            "nvidia.toolkit",
            "ORCH373",
            "it has runc",
            "nvidia-ctk runtime configure",
        ),
        (
            _tools("mi300x", kfd=False),
            "amd.driver",
            "ORCH375",
            "8 AMD GPUs on the bus, but no /dev/kfd",
            "amdgpu-dkms",
        ),
        (
            facts("mi300x", amdgpu=None),
            "amd.driver",
            "ORCH375",
            "no /sys/module/amdgpu/version",
            "amdgpu-dkms",
        ),
        (_tools("gaudi2", gpus=()), "gaudi.driver", "ORCH376", "there is no hl-smi", "habanalabs-installer"),
        (
            docker("gaudi2", runtimes=("runc",)),
            "gaudi.runtime",
            "ORCH377",
            "no runtime habana",
            "container-runtime",
        ),
        (facts("wormhole", tenstorrent_devices=0), "tt.driver", "ORCH378", "no /dev/tenstorrent", "tt-kmd"),
        (_tools("wormhole", gpus=()), "tt.driver", "ORCH378", "there is no tt-smi", "tt-smi"),
        (facts("wormhole", hugepages=0), "tt.hugepages", "ORCH379", "HugePages_Total 0", "hugepages.service"),
    ],
)
def test_a_broken_requirement_is_a_failure_of_its_check(
    found: HostFacts, check: str, code: str, detail: str, hint: str
) -> None:
    result = judged(found)[check]
    assert (result.result, result.code) == (Result.FAIL, code)
    assert detail in result.detail
    assert hint in (result.hint or "")


def test_a_gpu_that_fell_off_the_bus_is_told_as_that() -> None:
    found = facts()
    lost = found.model_copy(update={"gpus": (found.gpus[0].model_copy(update={"count": 7}),)})
    result = judged(lost)["nvidia.driver"]
    assert (result.result, result.detail) == (Result.FAIL, "7 NVIDIA GPUs answer, 8 are on the bus")
    assert "xid" in (result.hint or "")


def test_a_device_without_its_driver_is_no_cpu_host() -> None:
    bare = facts(gpus=(), tools=(), pci_devices=(PciDevices(vendor="nvidia", count=4),))
    assert judged(bare)["nvidia.driver"].detail == "4 NVIDIA GPUs on the bus, but there is no nvidia-smi"
    assert judged(bare)["nvidia.container"].detail == "needs nvidia.driver"
    cpu = judged(facts(gpus=(), tools=(), pci_devices=()))["nvidia.driver"]
    assert (cpu.result, cpu.detail) == (Result.SKIPPED, "no NVIDIA GPU on this host")


def test_an_unknown_cuda_version_is_judged_by_the_driver() -> None:
    assert judged(_cuda(None, "530.30.02"))["nvidia.driver"].result is Result.PASS
    assert judged(_cuda("13.3", "610.43.02"))["nvidia.driver"].result is Result.PASS


def test_cdi_devices_do_in_place_of_the_runtime() -> None:
    result = judged(docker(runtimes=("runc",), cdi=("nvidia.com/gpu",)))["nvidia.toolkit"]
    assert result.result is Result.PASS
    assert "CDI has nvidia.com/gpu" in result.detail


@pytest.mark.parametrize(
    ("tried", "result", "detail"),
    [
        (TRIED, Result.PASS, "8 GPUs in a container of orch/job"),
        (ContainerProbe(image="i", gpus=6), Result.FAIL, "6 GPUs in a container of i, 8 on the host"),
        (
            ContainerProbe(image="i", exit_code=125, output="could not select device driver"),
            Result.FAIL,
            "could not select",
        ),
        (
            ContainerProbe(skip_reason="orch/job is not on the host"),
            Result.SKIPPED,
            "orch/job is not on the host",
        ),
    ],
)
def test_gpus_in_a_container_are_counted_against_the_hosts(
    tried: ContainerProbe, result: Result, detail: str
) -> None:
    found = judged(facts(), container=tried)["nvidia.container"]
    assert found.result is result
    assert detail in found.detail
    assert found.code == ("ORCH374" if result is Result.FAIL else None)


def test_what_needs_docker_is_skipped_without_it() -> None:
    stopped = judged(docker(version=None, trouble="is the docker daemon running?"))
    assert stopped["nvidia.toolkit"].detail == "needs docker.engine"
    assert stopped["nvidia.container"].detail == "needs docker.engine"
    assert stopped["nvidia.driver"].result is Result.PASS


def test_without_sudo_what_root_would_have_read_is_skipped_for_that_reason() -> None:
    trouble = "permission denied while trying to connect to the Docker daemon socket"
    found = facts(
        root="no",
        root_trouble="a password is required",
        forwarding=None,
        docker=docker(version=None, trouble=trouble).docker,
    )
    result = judged(found)
    assert "needs sudo.nopasswd" in result["docker.engine"].detail
    assert "needs sudo.nopasswd" in result["ssh.forwarding"].detail
    assert result["nvidia.toolkit"].detail == "needs docker.engine"


def test_disk_limits_can_be_set() -> None:
    small = docker(free_mib=60 * 1024)
    warning = judged(small)["host.disk"]
    assert (warning.result, warning.code) == (Result.WARN, "ORCH369")
    assert judged(small, CheckOptions(disk_warn_gib=55))["host.disk"].result is Result.PASS
    assert judged(small, CheckOptions(disk_min_gib=70))["host.disk"].result is Result.FAIL


def test_a_clock_that_is_off_is_a_warning_with_the_difference() -> None:
    ahead, behind = judged(facts(clock_offset_s=600.2)), judged(facts(clock_offset_s=-7.0))
    assert ahead["host.clock"].detail == "10 min ahead of this machine"
    assert (ahead["host.clock"].result, ahead["host.clock"].code) == (Result.WARN, "ORCH370")
    assert behind["host.clock"].detail == "7.0 s behind this machine"
    assert judged(facts(clock_offset_s=4.9))["host.clock"].result is Result.PASS


def test_open_ports_are_a_warning_that_names_them() -> None:
    result = judged(facts(), open_ports=(2375, 29500))["fw.external"]
    assert (result.result, result.code) == (Result.WARN, "ORCH380")
    assert result.detail == "reached from here: port 2375, 29500"
    skipped = judged(facts(), open_ports=None, skip_reason="reached by way of another host, not from outside")
    assert skipped["fw.external"].result is Result.SKIPPED


def test_nodes_in_containers_need_no_machine_id() -> None:
    assert (
        judged(facts(machine_id=None), CheckOptions(machine_ids=False))["host.unique"].result
        is Result.SKIPPED
    )


def test_a_machine_id_of_another_host_fails_and_names_it() -> None:
    result = judged(facts(), same_machine_id=("gpu7",))["host.unique"]
    assert (result.result, result.code) == (Result.FAIL, "ORCH368")
    assert "the same machine id as gpu7" in result.detail


def two(mtu: int = 1500, address: str = "10.0.0.2") -> ClusterNetwork:
    return ClusterNetwork("10.0.0.0/24", (*ALONE.addresses, ClusterAddress("gpu2", address, "eth1", mtu)))


def test_an_mtu_that_differs_fails_a_cluster_and_warns_others() -> None:
    result = judged(facts(), MESH, network=two(9000), host_count=2, mesh=MeshView(peers=1))["net.internal"]
    assert (result.result, result.code) == (Result.FAIL, "ORCH381")
    assert "the hosts' MTUs differ (9000 on gpu2; 1500 on gpu1)" in result.detail
    assert "mtu 9000" in (result.hint or "")
    assert judged(facts(), network=two(9000))["net.internal"].result is Result.WARN


def test_one_address_on_two_hosts_fails_a_cluster() -> None:
    result = judged(facts(), MESH, network=two(address="10.0.0.1"), host_count=2)["net.internal"]
    assert result.result is Result.FAIL
    assert "gpu2 has the same address" in result.detail


def test_a_network_problem_is_told_on_the_hosts_it_is_about() -> None:
    problem = NetworkProblem(
        "ORCH361", "no interface of gpu1 has the address 10.0.0.9", ("gpu1",), "it has none", "mend"
    )
    own = judged(facts(), MESH, network=None, problems=(problem,), host_count=2)
    assert own["net.internal"].result is Result.FAIL
    assert "ORCH361" in own["net.internal"].detail
    assert own["net.mesh"].detail == "needs net.internal"
    others = judged(facts(), MESH, network=None, problems=(replace(problem, hosts=("gpu2",)),), host_count=2)
    assert others["net.internal"].result is Result.SKIPPED


@pytest.mark.parametrize(
    ("view", "result", "detail"),
    [
        (MeshView(peers=3), Result.PASS, "3 of 3 hosts reached, and by them"),
        (
            MeshView(
                peers=3, unreached=(("b", "no answer in 5 s"),), unreached_by=(("b", "no answer in 5 s"),)
            ),
            Result.FAIL,
            "gpu1 and b do not reach each other (no answer in 5 s)",
        ),
        (
            MeshView(peers=3, unreached=(("b", "Connection refused"),)),
            Result.FAIL,
            "gpu1 -> b fails (Connection refused), the other way is open",
        ),
        (
            MeshView(peers=3, unreached_by=(("b", "no answer in 5 s"),)),
            Result.FAIL,
            "b -> gpu1 fails (no answer in 5 s), the other way is open",
        ),
        (
            MeshView(peers=3, lost_large_packets=(("b", "the way carries 1400"),)),
            Result.FAIL,
            "large packets to b are lost (the way carries 1400)",
        ),
        (MeshView(peers=3, sshd_port_only=("b",)), Result.WARN, "of b only sshd's port was tried"),
        (MeshView(peers=3, unmeasured_mtu=("b",)), Result.WARN, "the packet size to b could not be tried"),
        (MeshView(peers=0, failure="the host stopped answering"), Result.FAIL, "the host stopped answering"),
    ],
)
def test_the_mesh_names_the_pair_and_the_direction(view: MeshView, result: Result, detail: str) -> None:
    found = judged(facts(), MESH, network=two(), host_count=2, mesh=view)["net.mesh"]
    assert found.result is result
    assert detail in found.detail
    assert found.code == (None if result is Result.PASS else "ORCH382")


@pytest.mark.parametrize(
    ("ports", "common", "result", "detail"),
    [
        ((IB,), 1, Result.PASS, "1 active RDMA port (InfiniBand, 400 Gb/sec (4X NDR))"),
        ((), 0, Result.WARN, "over Ethernet"),
        ((IB_DOWN,), 1, Result.FAIL, "0 active RDMA ports; not active: mlx5_0/1 DOWN; most hosts have 1"),
        ((IB_DOWN,), 0, Result.WARN, "not active: mlx5_0/1 DOWN"),
    ],
)
def test_rdma_ports_are_compared_within_a_cluster(
    ports: tuple[RdmaPort, ...], common: int, result: Result, detail: str
) -> None:
    found = judged(facts(rdma_ports=ports, rdma_files=True), MESH, rdma_common=common)["rdma.devices"]
    assert found.result is result
    assert detail in found.detail
    assert found.code == (None if result is Result.PASS else "ORCH383")


def test_rdma_devices_that_programs_cannot_open_fail() -> None:
    found = judged(facts(rdma_ports=(IB,), rdma_files=False), MESH, rdma_common=1)["rdma.devices"]
    assert (found.result, "/dev/infiniband" in found.detail) == (Result.FAIL, True)


@pytest.mark.parametrize(
    ("tool", "detail"),
    [
        (None, "there is no dcgmi"),
        (
            Tool(name="dcgmi", exit_code=255, output="Error: unable to establish a connection"),
            "unable to establish",
        ),
        (Tool(name="dcgmi", exit_code=124), "did not answer in time"),
        (Tool(name="dcgmi", exit_code=0, output="7 GPUs found."), "DCGM watches 7 GPUs, the host has 8"),
    ],
)
def test_no_health_data_is_a_warning(tool: Tool | None, detail: str) -> None:
    smi = Tool(name="nvidia-smi", exit_code=0)
    result = judged(facts(tools=(smi, *([tool] if tool else []))))["gpu.health"]
    assert (result.result, result.code) == (Result.WARN, "ORCH384")
    assert detail in result.detail


def test_every_failure_and_warning_says_what_to_do() -> None:
    assert all(check.hint and check.requires for check in CHECKS)


def test_a_key_nobody_vouched_for_is_told_with_its_fingerprint() -> None:
    assert "SHA256:abc" in judged(facts(), unverified_key="SHA256:abc")["ssh.connect"].detail


def test_a_host_whose_addresses_are_unknown_is_not_silently_passed() -> None:
    blind = facts(interfaces=(HostInterface(name="eth0", kind="physical", mtu=1500),), sees_addresses=False)
    problem = NetworkProblem(
        "ORCH361", "the addresses of a host cannot be told", ("gpu1",), "no `ip`", "iproute2"
    )
    assert judged(blind, MESH, network=None, problems=(problem,))["net.internal"].result is Result.FAIL
