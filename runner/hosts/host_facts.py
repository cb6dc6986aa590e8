"""The facts of a host as values. Checks (`checks/`) decide whether they are good enough.

Two of them are recorded under a former name (`serialization_alias`).
"""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
    """Docker on the host. `version` is None when the server does not answer; `trouble` then says why.

    `root` is the folder of Docker's images, None when unknown; `size_mib` and `free_mib` are the size and the
    free space of its file system. `cdi`: kinds of devices (`nvidia.com/gpu`) with CDI specifications.
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
    """Accelerators of one vendor on the PCI bus, with or without a driver."""

    vendor: Vendor
    count: int
    name: str | None = None


class UnreadOutput(_Frozen):
    """Output that cannot be parsed: the section of the script, the tool that wrote it, and why."""

    part: str
    tool: str
    why: str


class Tool(_Frozen):
    """A vendor's tool that was run: its exit code (124: timeout), and the start of its output."""

    name: str
    exit_code: int
    output: str = Field(default="", serialization_alias="said")


class HostInterface(_Frozen):
    """A network interface. `addresses` are in CIDR form, `rdma` the RDMA devices behind it.

    `kind`: `physical` includes interfaces on top of a physical one (a bond, a VLAN, a bridge with a cable);
    `bridge` connects containers or virtual machines only; `virtual` is any other.
    """

    name: str
    kind: Literal["physical", "bridge", "virtual", "loopback"]
    mtu: int
    speed_mbps: int | None = None
    addresses: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


class RdmaPort(_Frozen):
    """A port of an RDMA device as the kernel describes it: `ACTIVE`, `InfiniBand`, `400 Gb/sec (4X NDR)`."""

    device: str
    port: int
    state: str
    layer: str = ""
    rate: str = ""


class HostFacts(_Frozen):
    """The facts of one host, read over SSH.

    `root`: how commands get root: `root` (the login is root), `sudo`, or `no`, with the reason in
    `root_trouble`. `forwarding`: sshd's `AllowTcpForwarding` for this login (`yes no local remote`), None
    when unreadable. `clock_offset_s`: the smallest possible offset of the host's clock, ahead if positive;
    network delay cannot increase it. `memlock_kib` is None when unlimited. `sees_addresses` is false on a
    host without the `ip` command. `unread`: output that could not be parsed; its facts are missing here.
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
    pci_devices: tuple[PciDevices, ...] = Field(default=(), serialization_alias="seen")
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
        """The facts that a host is registered with and compared to later: only lasting ones."""
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
        """Number of accelerators of a vendor that its driver lists."""
        return sum(gpu.count for gpu in self.gpus if gpu.vendor == vendor)

    def pci_count(self, vendor: Vendor) -> int:
        """Number of accelerators of a vendor on the PCI bus."""
        return sum(devices.count for devices in self.pci_devices if devices.vendor == vendor)
