"""Checks of accelerators and fabric devices. Pure.

Which vendor's checks run follows from the PCI bus or a vendor's tool: a device without its driver is a
failure, not a CPU host.
"""

from __future__ import annotations

import re

from orch.runner.hosts.checks.types import (
    CheckOptions,
    HostObservation,
    Outcome,
    count,
    failed,
    passed,
    skipped,
    warned,
)
from orch.runner.hosts.host_facts import HostFacts, Tool, Vendor

# The first driver of CUDA 12.1. Source: CUDA toolkit release notes, table of driver versions.
CUDA_12_1_DRIVER = (530, 30)

NOUNS: dict[Vendor, str] = {
    "nvidia": "NVIDIA GPU",
    "amd": "AMD GPU",
    "intel": "Gaudi card",
    "tenstorrent": "Tenstorrent card",
}
_TOOLS: dict[Vendor, str] = {
    "nvidia": "nvidia-smi",
    "amd": "amd-smi",
    "intel": "hl-smi",
    "tenstorrent": "tt-smi",
}


def has(facts: HostFacts, vendor: Vendor) -> bool:
    """Whether a host has, or is meant to have, accelerators of a vendor."""
    kernel = {"amd": facts.kfd, "tenstorrent": facts.tenstorrent_devices > 0}
    return bool(facts.pci_count(vendor) or facts.tool(_TOOLS[vendor]) or kernel.get(vendor))


def nvidia_driver(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    missing = _all_listed(facts, "nvidia")
    if missing is not None:
        return missing
    gpu = next(gpu for gpu in facts.gpus if gpu.vendor == "nvidia")
    detail = f"{_listed(facts, 'nvidia')}, driver {gpu.driver or 'unknown'}, CUDA {gpu.toolkit or 'unknown'}"
    cuda = _numbers(gpu.toolkit)
    supported = cuda >= options.cuda if cuda else _numbers(gpu.driver) >= CUDA_12_1_DRIVER
    minimum = ".".join(map(str, options.cuda))
    return (
        passed(detail)
        if supported
        else failed(f"{detail}: CUDA {minimum} or later is needed (driver 530.30)")
    )


def nvidia_toolkit(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    docker = facts.docker
    runtimes = docker.runtimes if docker else ()
    kinds = tuple(kind for kind in (docker.cdi if docker else ()) if kind.startswith("nvidia.com/"))
    version = f"toolkit {facts.nvidia_toolkit}" if facts.nvidia_toolkit else "toolkit of unknown version"
    if "nvidia" in runtimes:
        return passed(f"Docker has the runtime nvidia, {version}")
    if kinds:
        return passed(f"CDI has {', '.join(kinds)}, {version}")
    detail = (
        f"Docker has no runtime nvidia (it has {', '.join(runtimes) or 'none'}) and no CDI devices of NVIDIA"
    )
    if facts.nvidia_toolkit:
        return failed(
            detail, "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        )
    return failed(detail)


def nvidia_container(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    probe = observation.container
    if probe is None:
        return skipped("it was not tried")
    if probe.skip_reason is not None:
        return skipped(probe.skip_reason)
    on_host = facts.working_count("nvidia")
    if probe.exit_code:
        return failed(f"`docker run --gpus all {probe.image} nvidia-smi -L`: {probe.output}")
    detail = f"{count(probe.gpus, 'GPU')} in a container of {probe.image}"
    return passed(detail) if probe.gpus == on_host else failed(f"{detail}, {on_host} on the host")


def amd_driver(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    missing_paths = [
        what
        for what, there in (("/dev/kfd", facts.kfd), ("/sys/module/amdgpu/version", facts.amdgpu))
        if not there
    ]
    if missing_paths:
        on_bus = facts.pci_count("amd")
        detail = f"{count(on_bus, 'AMD GPU')} on the bus, but no " if on_bus else "there is no "
        return failed(detail + " and no ".join(missing_paths))
    missing = _all_listed(facts, "amd")
    return missing or passed(f"{_listed(facts, 'amd')}, amdgpu {facts.amdgpu}")


def gaudi_driver(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    return _all_listed(facts, "intel") or passed(f"{_listed(facts, 'intel')}, {_driver(facts, 'intel')}")


def gaudi_runtime(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    runtimes = facts.docker.runtimes if facts.docker else ()
    if "habana" in runtimes:
        return passed("Docker has the runtime habana")
    return failed(f"Docker has no runtime habana (it has {', '.join(runtimes) or 'none'})")


def tenstorrent_driver(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if not facts.tenstorrent_devices:
        on_bus = facts.pci_count("tenstorrent")
        detail = f"{count(on_bus, 'Tenstorrent card')} on the bus, but no" if on_bus else "there is no"
        return failed(f"{detail} /dev/tenstorrent/*")
    missing = _all_listed(facts, "tenstorrent")
    return missing or passed(f"{_listed(facts, 'tenstorrent')}, {_driver(facts, 'tenstorrent')}")


def hugepages(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    detail = f"HugePages_Total {facts.hugepages}"
    return passed(detail) if facts.hugepages else failed(detail)


def gpu_health(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    tool = facts.tool("dcgmi")
    if tool is None:
        return warned("no health data: there is no dcgmi")
    match = re.search(r"([0-9]{1,9}) GPUs? found", tool.output)
    if tool.exit_code or match is None:
        return warned(f"no health data: {_failure(tool)}", "sudo systemctl enable --now nvidia-dcgm")
    watched, on_host = int(match.group(1)), facts.working_count("nvidia")
    detail = f"DCGM watches {count(watched, 'GPU')}"
    return passed(detail) if watched == on_host else warned(f"{detail}, the host has {on_host}")


def rdma(facts: HostFacts, observation: HostObservation, options: CheckOptions) -> Outcome:
    if not options.cluster:
        return skipped("only clusters need it")
    active = active_ports(facts)
    inactive = [f"{p.device}/{p.port} {p.state}" for p in facts.rdma_ports if p.state != "ACTIVE"]
    detail = count(active, "active RDMA port")
    if active:
        first = next(port for port in facts.rdma_ports if port.state == "ACTIVE")
        detail += f" ({', '.join(part for part in (first.layer, first.rate) if part)})"
    if inactive:
        detail += f"; not active: {', '.join(inactive[:4])}{', …' if len(inactive) > 4 else ''}"
    if active != observation.rdma_common:
        return failed(f"{detail}; most hosts have {observation.rdma_common}")
    if not active:
        if inactive:
            return warned(detail)
        return warned(
            "no RDMA device: the cluster talks over Ethernet",
            "fine for hosts without InfiniBand or RoCE cards; else install their driver (DOCA-OFED, EFA)",
        )
    if not facts.rdma_files:
        return failed(f"{detail}, but no /dev/infiniband", "sudo modprobe -a ib_uverbs rdma_ucm ib_umad")
    return passed(detail)


def active_ports(facts: HostFacts) -> int:
    return sum(port.state == "ACTIVE" for port in facts.rdma_ports)


def _all_listed(facts: HostFacts, vendor: Vendor) -> Outcome | None:
    """A failure when the driver knows fewer accelerators than are on the bus, or none; else None."""
    working, on_bus, noun = facts.working_count(vendor), facts.pci_count(vendor), NOUNS[vendor]
    tool = facts.tool(_TOOLS[vendor])
    if working and working >= on_bus:
        return None
    if working:
        return failed(f"{count(working, noun)} answer, {on_bus} are on the bus", _lost(vendor))
    prefix = f"{count(on_bus, noun)} on the bus, but " if on_bus else ""
    if tool is None:
        return failed(f"{prefix}there is no {_TOOLS[vendor]}")
    return failed(f"{prefix}{_TOOLS[vendor]} lists none: {_failure(tool)}")


def _lost(vendor: Vendor) -> str:
    look = "sudo dmesg | grep -i xid" if vendor == "nvidia" else "sudo dmesg | tail -n 50"
    return f"a device has dropped out: `{look}` tells why; a reboot brings it back, or it is broken"


def _failure(tool: Tool) -> str:
    if tool.exit_code == 124:
        return f"{tool.name} did not answer in time"
    return tool.output or f"{tool.name} ended with {tool.exit_code}"


def _listed(facts: HostFacts, vendor: Vendor) -> str:
    return ", ".join(
        f"{gpu.count} x {gpu.name or NOUNS[vendor]}" for gpu in facts.gpus if gpu.vendor == vendor
    )


def _driver(facts: HostFacts, vendor: Vendor) -> str:
    known = next((gpu.driver for gpu in facts.gpus if gpu.vendor == vendor and gpu.driver), None)
    return f"driver {known or 'unknown'}"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version or "")[:2])
