"""Wrong inputs of fleets on Nebius: what is said, where, and that nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import RehearsedNebius

FLEET = """\
type: fleet
name: lab
nodes: 2
placement: cluster
backends: [nebius]
instance_types: [TYPE]
resources: {gpu: "GPU:8"}
"""
H100, H200 = "gpu-h100-sxm_8gpu-128vcpu-1600gb", "gpu-h200-sxm_8gpu-128vcpu-1600gb"
OPEN = "network: {ssh_cidrs: [198.51.100.0/24], "

# Type, further lines of the file -> what is said of it.
WRONG: dict[str, tuple[str, str, str]] = {
    "fabric of another region": (
        H200,
        f"regions: [eu-west1]\n{OPEN}fabric: fabric-7}}\n",
        "lab.yml:9:49: error ORCH205: gpu-h200-sxm_8gpu-128vcpu-1600gb in eu-west1 is not on the fabric",
    ),
    "fabric of another type": (
        H200,
        f"{OPEN}fabric: fabric-2}}\n",
        "lab.yml:8:49: error ORCH205: gpu-h200-sxm_8gpu-128vcpu-1600gb in",
    ),
    "fabric that nobody knows": (
        H100,
        f"{OPEN}fabric: fabric-x}}\n",
        "lab.yml:8:49: error ORCH205: gpu-h100-sxm_8gpu-128vcpu-1600gb in eu-north1 is not on the fabric",
    ),
    "no InfiniBand": (
        "gpu-h100-sxm_1gpu-16vcpu-200gb",
        f"{OPEN}interconnect: required}}\n",
        "lab.yml:8:55: error ORCH223: a fast interconnect is required, and gpu-h100-sxm_1gpu",
    ),
    "type": (
        "gpu-h100-sxm_8gpu-128vcpu",
        f"{OPEN[:-2]}}}\n",
        "lab.yml:6:18: error ORCH202: the catalogue has no Nebius type 'gpu-h100-sxm_8gpu-128vcpu'",
    ),
    "zone": (
        H100,
        f"{OPEN[:-2]}}}\navailability_zones: [eu-north1-a]\n",
        "lab.yml:9:1: error ORCH118: `availability_zones` is not supported by this version",
    ),
    "disks of its own": (
        H100,
        f"{OPEN[:-2]}}}\nscratch: true\n",
        "lab.yml:9:1: error ORCH118: `scratch` is not supported by this version",
    ),
    "nobody comes in": (
        H100,
        "network: {bastion: false}\n",
        "lab.yml:8:20: error ORCH235: nobody could log in to the nodes: no network may reach their SSH",
    ),
    "no hop": (
        H100,
        f"{OPEN}public_ips: false, bastion: false}}\n",
        "lab.yml:8:69: error ORCH235: nobody could log in to the nodes: they have no public addresses",
    ),
    "subnet": (
        H100,
        f"{OPEN}subnets: [default-subnet, gone]}}\n",
        "lab.yml:8:67: error ORCH226: the project project-e00eu-north1 has no gone",
    ),
    "group": (
        H100,
        f"{OPEN}security_groups: [gone]}}\n",
        "lab.yml:8:59: error ORCH226: the project project-e00eu-north1 has no gone",
    ),
    "image": (
        H100,
        f"{OPEN[:-2]}}}\nos_image: ubuntu12.04-cuda1\n",
        f"lab.yml:9:11: error ORCH213: no machine image was found for {H100} in eu-north1",
    ),
    "blocks": (
        H100,
        f"{OPEN[:-2]}}}\nblocks: 3\n",
        "lab.yml:9:9: error ORCH",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_pointed_at_and_nothing_is_made(tmp_path: Path, case: str) -> None:
    kind, lines, said = WRONG[case]
    there = RehearsedNebius.make(tmp_path)
    gpu = "H200" if "h200" in kind else "H100"
    text = FLEET.replace("TYPE", kind).replace("GPU", gpu)
    there.write("lab.yml", (text.replace(":8", ":1") if "1gpu" in kind else text) + lines)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    assert said in told.err
    assert "local nodes" not in told.err
    assert "nebius.vpc" not in told.err  # what the SDK says to itself
    assert there.cloud.everything() == {}


def test_a_region_without_a_project_is_told(tmp_path: Path) -> None:
    there = RehearsedNebius.make(tmp_path)
    there.write("orch.yml", "project: tests\nbackends: [{type: nebius, projects: [project-of-nobody]}]\n")
    text = FLEET.replace("TYPE", H100).replace("GPU", "H100") + f"regions: [eu-north1]\n{OPEN[:-2]}}}\n"
    there.write("lab.yml", text)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    assert "lab.yml:8:10: error ORCH205: these credentials see no project of Nebius in eu-north1" in told.err
