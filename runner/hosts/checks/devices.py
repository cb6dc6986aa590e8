"""Checks of accelerators and fabric devices. Pure.

Which vendor's checks run follows from the PCI bus or a vendor's tool: a device without its driver is a
failure, not a CPU host.
"""

from __future__ import annotations

import re

from orch.runner.hosts.checks.types import Observed, Outcome, Wanted, count, failed, passed, skipped, warned
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
    return bool(facts.seen_of(vendor) or facts.tool(_TOOLS[vendor]) or kernel.get(vendor))


def nvidia_driver(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    missing = _all_listed(facts, "nvidia")
    if missing is not None:
        return missing
    gpu = next(gpu for gpu in facts.gpus if gpu.vendor == "nvidia")
    told = f"{_listed(facts, 'nvidia')}, driver {gpu.driver or 'unknown'}, CUDA {gpu.toolkit or 'unknown'}"
    cuda = _numbers(gpu.toolkit)
    enough = cuda >= wanted.cuda if cuda else _numbers(gpu.driver) >= CUDA_12_1_DRIVER
    least = ".".join(map(str, wanted.cuda))
    return passed(told) if enough else failed(f"{told}: CUDA {least} or later is needed (driver 530.30)")


def nvidia_toolkit(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    docker = facts.docker
    runtimes = docker.runtimes if docker else ()
    kinds = tuple(kind for kind in (docker.cdi if docker else ()) if kind.startswith("nvidia.com/"))
    version = f"toolkit {facts.nvidia_toolkit}" if facts.nvidia_toolkit else "toolkit of unknown version"
    if "nvidia" in runtimes:
        return passed(f"Docker has the runtime nvidia, {version}")
    if kinds:
        return passed(f"CDI has {', '.join(kinds)}, {version}")
    told = (
        f"Docker has no runtime nvidia (it has {', '.join(runtimes) or 'none'}) and no CDI devices of NVIDIA"
    )
    if facts.nvidia_toolkit:
        return failed(
            told, "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
        )
    return failed(told)


def nvidia_container(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    tried = observed.container
    if tried is None:
        return skipped("it was not tried")
    if tried.untried is not None:
        return skipped(tried.untried)
    here = facts.count_of("nvidia")
    if tried.exit_code:
        return failed(f"`docker run --gpus all {tried.image} nvidia-smi -L`: {tried.said}")
    told = f"{count(tried.gpus, 'GPU')} in a container of {tried.image}"
    return passed(told) if tried.gpus == here else failed(f"{told}, {here} on the host")


def amd_driver(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    lacking = [
        what
        for what, there in (("/dev/kfd", facts.kfd), ("/sys/module/amdgpu/version", facts.amdgpu))
        if not there
    ]
    if lacking:
        seen = facts.seen_of("amd")
        told = f"{count(seen, 'AMD GPU')} on the bus, but no " if seen else "there is no "
        return failed(told + " and no ".join(lacking))
    missing = _all_listed(facts, "amd")
    return missing or passed(f"{_listed(facts, 'amd')}, amdgpu {facts.amdgpu}")


def gaudi_driver(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    return _all_listed(facts, "intel") or passed(f"{_listed(facts, 'intel')}, {_driver(facts, 'intel')}")


def gaudi_runtime(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    runtimes = facts.docker.runtimes if facts.docker else ()
    if "habana" in runtimes:
        return passed("Docker has the runtime habana")
    return failed(f"Docker has no runtime habana (it has {', '.join(runtimes) or 'none'})")


def tenstorrent_driver(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if not facts.tenstorrent_devices:
        seen = facts.seen_of("tenstorrent")
        told = f"{count(seen, 'Tenstorrent card')} on the bus, but no" if seen else "there is no"
        return failed(f"{told} /dev/tenstorrent/*")
    missing = _all_listed(facts, "tenstorrent")
    return missing or passed(f"{_listed(facts, 'tenstorrent')}, {_driver(facts, 'tenstorrent')}")


def hugepages(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    told = f"HugePages_Total {facts.hugepages}"
    return passed(told) if facts.hugepages else failed(told)


def gpu_health(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    tool = facts.tool("dcgmi")
    if tool is None:
        return warned("no health data: there is no dcgmi")
    match = re.search(r"([0-9]{1,9}) GPUs? found", tool.said)
    if tool.exit_code or match is None:
        return warned(f"no health data: {_failure(tool)}", "sudo systemctl enable --now nvidia-dcgm")
    found, here = int(match.group(1)), facts.count_of("nvidia")
    told = f"DCGM watches {count(found, 'GPU')}"
    return passed(told) if found == here else warned(f"{told}, the host has {here}")


def rdma(facts: HostFacts, observed: Observed, wanted: Wanted) -> Outcome:
    if not wanted.cluster:
        return skipped("only clusters need it")
    active = active_ports(facts)
    down = [f"{p.device}/{p.port} {p.state}" for p in facts.rdma_ports if p.state != "ACTIVE"]
    told = count(active, "active RDMA port")
    if active:
        first = next(port for port in facts.rdma_ports if port.state == "ACTIVE")
        told += f" ({', '.join(part for part in (first.layer, first.rate) if part)})"
    if down:
        told += f"; not active: {', '.join(down[:4])}{', …' if len(down) > 4 else ''}"
    if active != observed.rdma_common:
        return failed(f"{told}; most hosts have {observed.rdma_common}")
    if not active:
        if down:
            return warned(told)
        return warned(
            "no RDMA device: the cluster talks over Ethernet",
            "fine for hosts without InfiniBand or RoCE cards; else install their driver (DOCA-OFED, EFA)",
        )
    if not facts.rdma_files:
        return failed(f"{told}, but no /dev/infiniband", "sudo modprobe -a ib_uverbs rdma_ucm ib_umad")
    return passed(told)


def active_ports(facts: HostFacts) -> int:
    return sum(port.state == "ACTIVE" for port in facts.rdma_ports)


def _all_listed(facts: HostFacts, vendor: Vendor) -> Outcome | None:
    """A failure when the driver knows fewer accelerators than are on the bus, or none; else None."""
    here, seen, noun = facts.count_of(vendor), facts.seen_of(vendor), NOUNS[vendor]
    tool = facts.tool(_TOOLS[vendor])
    if here and here >= seen:
        return None
    if here:
        return failed(f"{count(here, noun)} answer, {seen} are on the bus", _lost(vendor))
    on_bus = f"{count(seen, noun)} on the bus, but " if seen else ""
    if tool is None:
        return failed(f"{on_bus}there is no {_TOOLS[vendor]}")
    return failed(f"{on_bus}{_TOOLS[vendor]} lists none: {_failure(tool)}")


def _lost(vendor: Vendor) -> str:
    look = "sudo dmesg | grep -i xid" if vendor == "nvidia" else "sudo dmesg | tail -n 50"
    return f"a device has dropped out: `{look}` tells why; a reboot brings it back, or it is broken"


def _failure(tool: Tool) -> str:
    if tool.exit_code == 124:
        return f"{tool.name} did not answer in time"
    return tool.said or f"{tool.name} ended with {tool.exit_code}"


def _listed(facts: HostFacts, vendor: Vendor) -> str:
    return ", ".join(
        f"{gpu.count} x {gpu.name or NOUNS[vendor]}" for gpu in facts.gpus if gpu.vendor == vendor
    )


def _driver(facts: HostFacts, vendor: Vendor) -> str:
    known = next((gpu.driver for gpu in facts.gpus if gpu.vendor == vendor and gpu.driver), None)
    return f"driver {known or 'unknown'}"


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version or "")[:2])
