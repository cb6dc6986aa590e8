"""How a container gets a node's accelerators, all of them or those of its blocks: one row per vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orch.runner.plan.run_plan import RankPlan, RunPlan
from orch.spec.state import Gpus
from orch.templates import ShellText

# Names of a node's devices in the order blocks count them, one per line.
# Without KFD's topology (a stripped /sys) the render nodes' own order has to do.
_AMD_RENDER_NODES = ShellText("""\
for n in $(ls -d /sys/class/kfd/kfd/topology/nodes/* 2>/dev/null | sort -V); do
  m=$(sed -n 's/^drm_render_minor //p' $n/properties 2>/dev/null)
  [ "${m:-0}" -lt 128 ] || echo "/dev/dri/renderD$m"
done | grep . || ls -d /dev/dri/renderD* 2>/dev/null | sort -V""")
# A card's index may change at a boot, its module does not; neighbouring modules are wired to each other.
_GAUDI_BY_MODULE = ShellText("""\
hl-smi -Q index,module_id -f csv,noheader 2>/dev/null |
  sed -n 's/^ *\\([0-9]*\\), *\\([0-9]*\\) *$/\\2 \\1/p' | sort -n | cut -d' ' -f2""")
# How much each device is used, as `DeviceAccess.use` says.
_NVIDIA_USE = ShellText(
    "nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits "
    '${own:+"--id=$own"}'
)
# Linux, "drm/amdgpu AMDgpu driver", GPU busy percent and memory; rocm-smi reads these files.
_AMD_USE = ShellText(f"""\
i=0
{{ {_AMD_RENDER_NODES}
}} | while read -r n; do
  d=/sys/class/drm/${{n##*/}}/device busy=- used=- all=-
  read -r busy < "$d/gpu_busy_percent"
  read -r used < "$d/mem_info_vram_used" && used=$((used >> 20))
  read -r all < "$d/mem_info_vram_total" && all=$((all >> 20))
  echo "$i, $busy, $used, $all"
  i=$((i + 1))
done""")
# Intel Gaudi, "hl-smi": blocks count cards by module.
_GAUDI_USE = ShellText("""\
hl-smi -Q module_id,utilization.aip,memory.used,memory.total -f csv,noheader,nounits | sort -n | {
  i=0
  while IFS=, read -r _ rest; do echo "$i,$rest"; i=$((i + 1)); done
}""")


@dataclass(frozen=True)
class DeviceAccess:
    """Docker's options for one vendor's accelerators, and how their use is read.

    `always`: for every job. `whole`: for one that has all of a node, where that can be said shorter than a
    part. Of a part, `joined` is given once, its `{}` the devices with commas between, and `each` once per
    device. `devices`: shell that prints the names of the devices in order; without it, or when it prints
    none, they are 0, 1, 2… `folders` are mounted where the node has them. `group`: a file whose group the
    job's user joins.

    `use`: shell that prints of each device its index as blocks count it, the percent of time it was at work,
    and used and total memory in MiB, with commas between; what is no number is not known. It may leave out
    those that are not in `$own`, indices with commas between, unless that is empty. Without it no tool of the
    vendor tells.
    """

    always: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    joined: str | None = None
    each: str | None = None
    devices: ShellText | None = None
    folders: tuple[str, ...] = ()
    group: str | None = None
    use: ShellText | None = None


DEVICE_ACCESS: Mapping[str, DeviceAccess] = {
    # NVIDIA Container Toolkit, "Specialized configurations with Docker": `--gpus '"device=0,2"'`, where the
    # inner quotes keep the comma from ending Docker's own list.
    "nvidia": DeviceAccess(whole=("--gpus=all",), joined='--gpus="device={}"', use=_NVIDIA_USE),
    # ROCm, "Running ROCm Docker containers": /dev/kfd is every GPU's compute interface, each render node one
    # GPU; its group is the host's `render`, whose number differs from host to host. Which render node is
    # which GPU: `drm_render_minor` in the kernel's KFD topology.
    "amd": DeviceAccess(
        always=("--device=/dev/kfd",),
        whole=("--device=/dev/dri",),
        each="--device={}",
        devices=_AMD_RENDER_NODES,
        group="/dev/kfd",
        use=_AMD_USE,
    ),
    # Intel Gaudi, "Docker installation" and "Multiple Dockers each with a single workload": 2 or 4 cards of a
    # container should be neighbours by module.
    "intel": DeviceAccess(
        always=(
            "--runtime=habana",
            "--cap-add=SYS_NICE",
            "--env=OMPI_MCA_btl_vader_single_copy_mechanism=none",
        ),
        whole=("--env=HABANA_VISIBLE_DEVICES=all",),
        joined="--env=HABANA_VISIBLE_DEVICES={}",
        devices=_GAUDI_BY_MODULE,
        use=_GAUDI_USE,
    ),
    # Tenstorrent, "Getting started with Docker": the devices, and the 1 GiB huge pages they are fed from.
    "tenstorrent": DeviceAccess(
        whole=("--device=/dev/tenstorrent",),
        each="--device=/dev/tenstorrent/{}",
        folders=("/dev/hugepages-1G",),
    ),
}


WITHOUT_TOOLKIT: Mapping[str, DeviceAccess] = {
    # Google Cloud, "Run GPU workloads on Container-Optimized OS": the driver lies in a folder of its own, and
    # NVIDIA's images look for it there.
    "nvidia": DeviceAccess(
        always=(
            "--device=/dev/nvidia-uvm",
            "--device=/dev/nvidiactl",
            "--volume=/var/lib/nvidia/lib64:/usr/local/nvidia/lib64",
            "--volume=/var/lib/nvidia/bin:/usr/local/nvidia/bin",
        ),
        each="--device=/dev/nvidia{}",
        use=ShellText(f"PATH=$PATH:/var/lib/nvidia/bin; {_NVIDIA_USE}"),
    ),
}


def device_access(gpus: Gpus) -> DeviceAccess | None:
    """The row for a node's accelerators; None when it has none. An unnamed vendor is taken for NVIDIA."""
    if not gpus.count:
        return None
    vendor = gpus.vendor or "nvidia"
    return (None if gpus.toolkit else WITHOUT_TOOLKIT.get(vendor)) or DEVICE_ACCESS.get(vendor)


def watched(plan: RunPlan, rank: RankPlan) -> bool:
    """Whether the use of a rank's GPUs can be read: those of simulated nodes are a number alone."""
    access = device_access(rank.node.gpus)
    return not plan.simulated and access is not None and access.use is not None
