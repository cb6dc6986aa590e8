"""Accelerators that pretend: vendors' tools (hosts/tools/) on a server's PATH, devices as lines of files."""

from __future__ import annotations

import json
import secrets
import uuid

from kit import TESTS
from kit.nodes.labmachine import Machine

TOOLS = TESTS / "hosts" / "tools"
ALL_TOOLS = tuple(tool.name for tool in TOOLS.iterdir())
# name as the tool says it, MiB, vendor:device of PCI
NVIDIA = {
    "H100": ("NVIDIA H100 80GB HBM3", 81559, "2330"),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, "20b2"),
    "L4": ("NVIDIA L4", 23034, "27b8"),
}


class Devices(Machine):
    """A server that can be given accelerators."""

    def give_nvidia(
        self,
        count: int = 8,
        model: str = "H100",
        *,
        driver: str = "550.54.15",
        cuda: str = "12.4",
        toolkit: bool = True,
        dcgm: bool = False,
    ) -> None:
        """GPUs with their driver; with the Container Toolkit, so that `docker run --gpus` works."""
        name, mib, device = NVIDIA[model]
        ids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{self.name}{i}')}" for i in range(count)]
        rows = [f"{i}|{name}|{mib}|{driver}|{cuda}|{ids[i]}|{_slot(i)}" for i in range(count)]
        self._give("nvidia", rows, f"0302|3D controller|10de|{device}|NVIDIA Corporation|{name}")
        self._tools("nvidia-smi", "lspci", *(["dcgmi"] if dcgm else []))
        if toolkit:
            self._tools("nvidia-container-runtime-hook", "nvidia-ctk")
            self._runtime("nvidia")

    def give_amd(self, count: int = 8, *, driver: str = "6.8.5") -> None:
        rows = [
            f"{i}|AMD Instinct MI300X|196592|{driver}|0x{secrets.token_hex(8)}|{_slot(i)}"
            for i in range(count)
        ]
        pci = "1200|Processing accelerators|1002|74a1|Advanced Micro Devices, Inc. [AMD/ATI]|"
        self._give("amd", rows, f"{pci}Aqua Vanjaram [Instinct MI300X]")
        self._tools("rocm-smi", "amd-smi", "lspci")
        self.run(
            "mknod -m 666 /dev/kfd c 235 0 2>/dev/null || : > /dev/kfd; mkdir -p /dev/dri; "
            "mount -t tmpfs modules /sys/module && mkdir /sys/module/amdgpu"
            f" && echo {driver} > /sys/module/amdgpu/version"
        )

    def give_gaudi(self, count: int = 8, *, runtime: bool = True) -> None:
        rows = [f"{i}|HL-225|98304|1.18.0-ee698fb|01P4-HL2080A0-{i:02}|{_slot(i)}" for i in range(count)]
        pci = "1200|Processing accelerators|1da3|1020|Habana Labs Ltd.|Gaudi2 AI Training Accelerator"
        self._give("gaudi", rows, pci)
        self._tools("hl-smi", "lspci")
        if runtime:
            self._runtime("habana")

    def give_tenstorrent(self, count: int = 4, *, hugepages: int = 4) -> None:
        rows = [f"{i}|n300 L|1.29|10001451172209{i}|{_slot(i)}" for i in range(count)]
        self._give("tenstorrent", rows, "1200|Processing accelerators|1e52|401e|Tenstorrent Inc|Wormhole")
        self._tools("tt-smi", "lspci")
        nodes = "; ".join(f": > /dev/tenstorrent/{i}" for i in range(count))
        self.run(f"mkdir -p /dev/tenstorrent; {nodes}")
        self._hugepages(hugepages)

    def take_accelerators(self) -> None:
        """Back to a server without any."""
        made = [f"/usr/local/bin/{tool}" for tool in ALL_TOOLS]
        made += ["/usr/local/bin/*-container-runtime", "/etc/docker/daemon.json", "/etc/accelerators"]
        made += ["/dev/kfd", "/dev/dri", "/dev/tenstorrent"]
        had_runtime = self.run("cat /etc/docker/daemon.json", check=False) != ""
        self.run("umount /sys/module; umount /proc/meminfo", check=False)
        self.run(f"rm -rf {' '.join(made)}")
        if had_runtime:
            self.stop_docker()
            self.start_docker()

    def _give(self, vendor: str, rows: list[str], pci: str) -> None:
        """`pci`: class|class name|vendor|device|vendor name|device name."""
        self.run("mkdir -p /etc/accelerators")
        self.put(f"/etc/accelerators/{vendor}", "\n".join(rows) + "\n")
        self.put("/etc/accelerators/pci", "".join(f"{row.rpartition('|')[2]}|{pci}\n" for row in rows))

    def _tools(self, *names: str) -> None:
        for name in names:
            self.put(f"/usr/local/bin/{name}", (TOOLS / name).read_text(), 0o755)

    def _runtime(self, name: str) -> None:
        """A container runtime that Docker knows by name. The hook of `--gpus` it looks for when it starts."""
        path = f"/usr/local/bin/{name}-container-runtime"
        self.put(path, (TOOLS / "container-runtime").read_text(), 0o755)
        self.put("/etc/docker/daemon.json", json.dumps({"runtimes": {name: {"path": path}}}))
        self.stop_docker()
        self.start_docker()

    def _hugepages(self, pages: int) -> None:
        self.run(
            "umount /proc/meminfo 2>/dev/null; "
            f"sed 's/^\\(HugePages_[TF][a-z]*: *\\).*/\\1{pages}/' /proc/meminfo > /run/meminfo; "
            "mount --bind /run/meminfo /proc/meminfo"
        )


def _slot(index: int) -> str:
    """A place on the PCI bus, without its domain."""
    return f"{0x18 + 0x10 * index:02x}:00.0"
