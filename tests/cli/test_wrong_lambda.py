"""Wrong inputs of fleets on Lambda: what is said, where, and that nothing is made.

A file has as many mistakes as are told together, for each call of the command line takes seconds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.rehearsals import LAMBDA_H100, RehearsedLambda
from kit.support import Folder

HEAD = "type: fleet\nname: lab\nnodes: 2\nplacement: cluster\nbackends: [lambda]\n"
OF_H100 = f'{HEAD}instance_types: [{LAMBDA_H100}]\nresources: {{gpu: "H100:8"}}\n'

# File -> what is said of it.
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "what the language has and Lambda has not": (
        f"""{OF_H100}availability_zones: [us-east-1]
scratch: true
reservation: r-1
topology: rank-ordered
ttl: 2h
network: {{name: shared}}
""",
        (
            "lab.yml:8:1: error ORCH118: `availability_zones` is not supported by this version",
            "Lambda's regions have no zones",
            "lab.yml:9:1: error ORCH118: `scratch` is not supported by this version",
            "lab.yml:10:1: error ORCH118: `reservation` is not supported by this version",
            "what is reserved at Lambda is a 1-Click Cluster",
            "lab.yml:11:1: error ORCH118: `topology` is not supported by this version",
            "lab.yml:12:1: error ORCH118: `ttl` is not supported by this version",
            "lab.yml:13:11: error ORCH118: `network.name` is not supported by this version",
        ),
    ),
    "what its API cannot do": (
        f"""{OF_H100}spot_policy: spot
tags: {{Team: a}}
mounts: [{{type: lambda-filesystem, id: data, path: /mnt/data, options: ro}}]
network: {{public_ips: false, bastion: true, subnets: [s], security_groups: [g], interconnect: required}}
""",
        (
            "lab.yml:8:14: error ORCH237: Lambda's API makes no spot instances",
            "lab.yml:9:14: error ORCH237: Lambda takes no tag 'Team' with this value",
            "lab.yml:10:52: error ORCH237: Lambda mounts no file system at /mnt/data",
            "lab.yml:10:72: error ORCH237: Lambda mounts its file systems itself",
            "lab.yml:11:23: error ORCH237: Lambda gives each instance a public address",
            "lab.yml:11:39: error ORCH237: Lambda has no small machines to jump over",
            "lab.yml:11:55: error ORCH237: Lambda's API has no networks",
            "lab.yml:11:77: error ORCH237: Lambda's API has no networks",
            "lab.yml:11:95: error ORCH223: a fast interconnect is required",
        ),
    ),
    "file systems that are not there, or not here": (
        f"""{OF_H100}regions: [us-west-1]
mounts:
- {{type: lambda-filesystem, id: data, path: /data/a}}
- {{type: lambda-filesystem, id: gone, path: /data/b}}
""",
        (
            "lab.yml:10:33: error ORCH239: the file system data is in us-east-1, and the fleet goes",
            "lab.yml:11:33: error ORCH239: the account has no file system gone",
        ),
    ),
    "a type": (
        f'{HEAD}instance_types: [gpu_8x_h100_sxm6]\nresources: {{gpu: "H100:8"}}\n',
        (
            "lab.yml:6:18: error ORCH202: the catalogue has no Lambda type 'gpu_8x_h100_sxm6'",
            f"hint: did you mean '{LAMBDA_H100}'",
        ),
    ),
    "a region": (
        f"{OF_H100}regions: [us-east-9]\n",
        ("error ORCH200: no Lambda offer fits the fleet 'lab'",),
    ),
    "what the account has not, and what costs too much": (
        f"{OF_H100}os_image: windows\nbudget: {{hourly: 50}}\nnetwork: {{ssh_cidrs: ['2001:db8::/32']}}\n",
        (
            f"lab.yml:8:11: error ORCH213: Lambda has no machine image windows for {LAMBDA_H100}",
            "lab.yml:9:18: error ORCH281: 2 nodes at $31.92 an hour make $63.84, over the budget of $50.00",
            "lab.yml:10:23: error ORCH226: nobody comes in from 2001:db8::/32",
        ),
    ),
    "a cluster beside what is provisioned": (
        "type: fleet\nname: lab\nbackends: [lambda]\nplacement: cluster\nnodes: 2\n"
        "backend_options: [{type: lambda, cluster: train}]\n",
        ("lab.yml:5:1: error ORCH140: `nodes` is for nodes that are provisioned, not for a cluster",),
    ),
    "a cluster that is not there": (
        "type: fleet\nname: lab\nbackends: [lambda]\nplacement: cluster\n"
        "backend_options: [{type: lambda, cluster: train}]\n",
        (
            "lab.yml:5:43: error ORCH230: the account has no 1-Click Cluster train",
            "there is none: no instance is behind another",
        ),
    ),
    "options without a cluster": (
        f"{OF_H100}backend_options: [{{type: lambda}}]\n",
        ("lab.yml:8:19: error ORCH230: options of lambda name no `cluster`",),
    ),
    "a file system of another cloud": (
        f"{OF_H100}mounts: [{{type: efs, id: fs-0123, path: /data}}]\n",
        ("lab.yml:8:17: error ORCH262: efs is a file system of",),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_pointed_at_and_nothing_is_made(tmp_path: Path, case: str) -> None:
    text, said = WRONG[case]
    there = RehearsedLambda.make(tmp_path)
    there.file_system("data", "us-east-1")
    before = there.cloud.everything()
    there.write("lab.yml", text)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    for each in said:
        assert each in told.err
    assert "local nodes" not in told.err
    assert there.cloud.everything() == before


def test_a_cluster_that_is_not_there_is_pointed_at_by_a_check_too(tmp_path: Path) -> None:
    there = RehearsedLambda.make(tmp_path)
    there.write("lab.yml", WRONG["a cluster that is not there"][0])
    told = there.orch("check", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    assert "lab.yml:5:43: error ORCH230: the account has no 1-Click Cluster train" in told.err


@pytest.mark.usefixtures("engine")
def test_an_account_that_lets_nobody_in_is_told_and_one_that_lets_in_the_world(tmp_path: Path) -> None:
    there = RehearsedLambda.make(tmp_path)
    there.write("lab.yml", OF_H100)
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 0, told.err
    assert "warning ORCH224: 0.0.0.0/0 lets the whole world knock at SSH" in told.err
    there.cloud.put_rules([])
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 3, told.err
    assert "error ORCH235: nobody could log in to the nodes: the account's firewall rules let" in told.err
    there.write("lab.yml", f"{OF_H100}regions: [us-south-1]\n")
    told = there.orch("preview", "lab.yml", "--rehearse")
    assert told.code == 0, told.err
    assert "warning ORCH224: no firewall rules hold in us-south-1" in told.err


def test_a_folder_in_the_place_of_the_account_is_told(tmp_path: Path) -> None:
    (tmp_path / "orch.yml").write_text("project: tests\n")
    (tmp_path / ".orch" / "rehearsal" / "lambda.db").mkdir(parents=True)
    (tmp_path / "lab.yml").write_text(OF_H100)
    said = Folder(tmp_path).orch("preview", "lab.yml", "--rehearse")
    assert said.code == 5
    assert "lambda.db: error: a folder is in the place of the simulated cloud's file" in said.err
