"""Wrong inputs of fleets and runs on RunPod: what is said, where, and that nothing is made.

A file has as many mistakes as are told together, for each call of the command line takes seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import RehearsedRunpod

HEAD = "type: fleet\nname: lab\nbackends: [runpod]\n"
H100 = 'resources: {gpu: "H100:8"}\n'

# File -> what is said of it.
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "what a container that is the node cannot have": (
        f"""{HEAD}placement: cluster
nodes: 9
blocks: 2
spot_policy: spot
image: orch/job
regions: [US, MARS]
availability_zones: [US-KS-2, us-east-1a]
network:
  subnets: [s]
  ssh_cidrs: [198.51.100.0/24]
  bastion: true
  public_ips: false
  interconnect: ethernet
{H100}""",
        (
            "lab.yml:5:8: error ORCH218: an Instant Cluster has 2 to 8 pods, 9 may be asked for here",
            "lab.yml:6:9: error ORCH236: a pod is the container of one job",
            "lab.yml:7:14: error ORCH236: RunPod sells neither clusters nor pods at a spot price",
            "lab.yml:8:8: error ORCH236: RunPod pulls the image of a pod from a registry: orch/job is",
            "lab.yml:9:15: error ORCH205: RunPod has no region 'MARS' in the catalogue",
            "lab.yml:10:31: error ORCH205: RunPod has no data center 'us-east-1a' in the catalogue",
            "lab.yml:12:12: error ORCH236: RunPod has no networks of yours",
            "lab.yml:13:14: error ORCH236: RunPod lets everybody reach a port that is open",
            "lab.yml:14:12: error ORCH236: orch makes no bastion on RunPod",
            "lab.yml:15:15: error ORCH236: nobody could log in to the pods without",
            "lab.yml:16:17: error ORCH236: the pods of an Instant Cluster have a fast interconnect",
        ),
    ),
    "what needs a machine under the container": (
        f"""{HEAD}nodes: 0..2
reservation: r-1
tags: {{a: b}}
os_image: ubuntu
init: [echo hi]
mounts: [{{type: nfs, source: "a:/b", path: /c}}]
topology: rank-ordered
ttl: 2d
network: {{fabric: f}}
{H100}""",
        (
            "lab.yml:5:1: error ORCH118: `reservation` is not supported by this version",
            "lab.yml:6:1: error ORCH118: `tags` is not supported by this version",
            "lab.yml:7:1: error ORCH118: `os_image` is not supported by this version",
            "lab.yml:8:1: error ORCH118: `init` is not supported by this version",
            "put it into the job's image, or its `commands`",
            "lab.yml:9:1: error ORCH118: `mounts` is not supported by this version",
            "lab.yml:10:1: error ORCH118: `topology` is not supported by this version",
            "lab.yml:11:1: error ORCH118: `ttl` is not supported by this version",
            "lab.yml:12:11: error ORCH118: `network.fabric` is not supported by this version",
        ),
    ),
    "an interconnect between single pods": (
        f"{HEAD}nodes: 0..2\nnetwork: {{interconnect: required}}\n{H100}",
        ("lab.yml:5:25: error ORCH223: a fast interconnect is required, and single pods have none",),
    ),
    "a cluster of what there is none of": (
        f"""{HEAD}nodes: 0..2
placement: cluster
network: {{interconnect: required}}
resources: {{gpu: "L4:1"}}
""",
        ("lab.yml:6:25: error ORCH223: RunPod makes no Instant Cluster of 1x_L4_SECURE",),
    ),
    "a volume": (
        """type: volume
name: data
backend: runpod
region: US
size: 100GB
iops: 100
throughput: 200
kms_key: k
tags: {a: b}
read_only: true
sharing: nfs
""",
        (
            "lab.yml:6:1: error ORCH118: `iops` of a volume of RunPod is not supported by this version",
            "lab.yml:7:1: error ORCH118: `throughput` of a volume of RunPod",
            "lab.yml:8:1: error ORCH118: `kms_key` of a volume of RunPod",
            "lab.yml:9:1: error ORCH118: `tags` of a volume of RunPod",
            "lab.yml:10:1: error ORCH118: `read_only` of a volume of RunPod",
            "lab.yml:11:10: error ORCH118: `sharing: nfs` of a disk",
        ),
    ),
    "where a volume cannot be": (
        "type: volume\nname: data\nbackend: runpod\nregion: US\nzone: US-KS-99\nsize: 100GB\n",
        (
            "lab.yml:5:7: error ORCH225: RunPod has no data center US-KS-99",
            "hint: they are in CA-MTL-1, EU-RO-1, US-KS-2",
        ),
    ),
    "a data center that there is none of": (
        f"{HEAD}nodes: 0..2\navailability_zones: [US-KS-2, US-KS-99]\n{H100}",
        (
            "lab.yml:5:31: error ORCH205: RunPod has no data center 'US-KS-99'",
            "it has CA-MTL-1, EU-RO-1, US-KS-2",
        ),
    ),
    "a type": (
        f"{HEAD}nodes: 0..2\ninstance_types: [8x_H100-SMX_SECURE]\n",
        ("lab.yml:5:18: error ORCH202: the catalogue has no RunPod type '8x_H100-SMX_SECURE'",),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_pointed_at_and_nothing_is_made(tmp_path: Path, case: str) -> None:
    text, said = WRONG[case]
    there = RehearsedRunpod.make(tmp_path)
    there.write("lab.yml", text)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    for each in said:
        assert each in told.err
    assert "local nodes" not in told.err
    assert there.cloud.everything() == {}
