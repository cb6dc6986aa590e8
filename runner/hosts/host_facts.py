"""What a host is and has, as values: nothing here decides whether that is good enough."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import BaseModel, ConfigDict

Json = str | int | float | bool | None
Vendor = Literal["nvidia", "amd", "intel", "tenstorrent"]
IpInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostDisk(_Frozen):
    name: str
    size_gib: int
    rotational: bool = False


class Docker(_Frozen):
    """`version` is None when the server does not answer; `trouble` then says what came instead.

    `root` is the folder Docker keeps its images in, as far as it is known, `size_mib` the space there,
    `free_mib` what is left of it.
    `cdi`: kinds of devices (`nvidia.com/gpu`) that the host has CDI specifications of.
    """

    version: str | None = None
    trouble: str | None = None
    root: str | None = None
    size_mib: int | None = None
    free_mib: int | None = None
    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


class Gpu(_Frozen):
    """Equal accelerators of one host. `memory_mib` is per device, `toolkit` the CUDA its driver supports."""

    vendor: Vendor
    name: str | None = None
    count: int
    memory_mib: int | None = None
    driver: str | None = None
    toolkit: str | None = None


class PciDevices(_Frozen):
    """Accelerators of one vendor on the PCI bus, whether or not a driver knows them."""

    vendor: Vendor
    count: int
    name: str | None = None


class UnreadOutput(_Frozen):
    """A part of a host's answer that could not be read: which (a section of the script), whose words, why."""

    part: str
    tool: str
    why: str


class Tool(_Frozen):
    """A vendor's tool that was asked: its exit code (124: it did not answer in time), what it said first."""

    name: str
    exit_code: int
    output: str = ""


class HostInterface(_Frozen):
    """A network interface. `addresses` are in CIDR form, `rdma` the RDMA devices behind it.

    `kind`: `physical` is also what is built on a physical one (a bond, a VLAN, a bridge with a cable in it);
    `bridge` is one between containers or virtual machines only; `virtual` is the rest.
    """

    name: str
    kind: Literal["physical", "bridge", "virtual", "loopback"]
    mtu: int
    speed_mbps: int | None = None
    addresses: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


class RdmaPort(_Frozen):
    """A port of an RDMA device in the kernel's words: `ACTIVE`, `InfiniBand`, `400 Gb/sec (4X NDR)`."""

    device: str
    port: int
    state: str
    layer: str = ""
    rate: str = ""


class HostFacts(_Frozen):
    """One host as it described itself over SSH.

    `root`: how root was come by: `root` (that is the login), `sudo`, or `no`, with `root_trouble` saying why.
    `forwarding`: sshd's `AllowTcpForwarding` for this login (`yes no local remote`), None when not readable.
    `clock_offset_s`: how far the host's clock is ahead at the least; travel time cannot make it look worse.
    `memlock_kib` is None when unlimited. `sees_addresses` is false on a host without the tool to tell them.
    `unread`: what the host said that no sense could be made of; the facts in it are missing here.
    """

    os: str = ""
    distribution: str | None = None
    kernel: str = ""
    arch: str = ""
    machine_id: str | None = None
    root: Literal["root", "sudo", "no"] = "no"
    root_trouble: str | None = None
    forwarding: str | None = None
    clock_offset_s: float | None = None
    cpus: int = 0
    memory_mib: int = 0
    hugepages: int = 0
    hugepage_kib: int = 0
    memlock_kib: int | None = None
    disks: tuple[HostDisk, ...] = ()
    docker: Docker | None = None
    gpus: tuple[Gpu, ...] = ()
    pci_devices: tuple[PciDevices, ...] = ()
    tools: tuple[Tool, ...] = ()
    nvidia_toolkit: str | None = None
    kfd: bool = False
    amdgpu: str | None = None
    tenstorrent_devices: int = 0
    interfaces: tuple[HostInterface, ...] = ()
    sees_addresses: bool = True
    rdma_ports: tuple[RdmaPort, ...] = ()
    rdma_files: bool = False
    unread: tuple[UnreadOutput, ...] = ()

    def registered(self) -> dict[str, Json]:
        """What a host is registered as, and compared with later: nothing momentary."""
        first = self.gpus[0] if self.gpus else None
        return {
            "arch": self.arch,
            "cpus": self.cpus,
            "docker": bool(self.docker and self.docker.version),
            "gpu_count": sum(gpu.count for gpu in self.gpus),
            "gpu_driver": first.driver if first else None,
            "gpu_memory_mib": min((gpu.memory_mib or 0 for gpu in self.gpus), default=0) or None,
            "gpu_name": ", ".join(dict.fromkeys(gpu.name for gpu in self.gpus if gpu.name)) or None,
            "gpu_vendor": first.vendor if first else None,
            "machine_id": self.machine_id,
            "memory_mib": self.memory_mib,
        }

    def owns(self, address: str) -> bool:
        """Whether one of its interfaces has this address."""
        ip = ipaddress.ip_address(address)
        return any(
            ipaddress.ip_interface(each).ip == ip
            for interface in self.interfaces
            for each in interface.addresses
        )

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def working_count(self, vendor: Vendor) -> int:
        """Accelerators of a vendor that its driver knows."""
        return sum(gpu.count for gpu in self.gpus if gpu.vendor == vendor)

    def pci_count(self, vendor: Vendor) -> int:
        """Accelerators of a vendor on the PCI bus."""
        return sum(devices.count for devices in self.pci_devices if devices.vendor == vendor)
