"""Machine images stay as `orch.lock` has them until somebody asks for newer ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.clouds.rehearsals import Rehearsed, RehearsedGcp

from orch.rehearsal.aws.data.tables import image_id


@dataclass(frozen=True)
class Images:
    """A kind of image in its last two releases, as the lock file names them; which one the nodes have."""

    project: type[Rehearsed]
    of: str
    older: str
    newer: str
    more: dict[str, str]
    of_nodes: Callable[[Any], set[str]]


def amis(there: Any) -> set[str]:
    return {there.cloud.instances()[each]["ImageId"] for each in there.nodes()}


def images_of_disks(there: Any) -> set[str]:
    disks = there.cloud.things("disk").values()
    return {"projects/" + each["sourceImage"].partition("/projects/")[2] for each in disks}


UBUNTU = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) {}"
AMIS = Images(
    Rehearsed,
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    image_id("us-east-1", UBUNTU.format("20260801")),
    image_id("us-east-1", UBUNTU.format("20261105")),
    {"image_name": UBUNTU.format("20260801"), "image_region": "us-east-1"},
    amis,
)
ACCELERATOR = "ubuntu-accelerator-2204-amd64-with-nvidia-570"
GCP_IMAGES = Images(
    RehearsedGcp,
    f"ubuntu-os-accelerator-images/{ACCELERATOR}",
    f"projects/ubuntu-os-accelerator-images/global/images/{ACCELERATOR}-v20261001",
    f"projects/ubuntu-os-accelerator-images/global/images/{ACCELERATOR}-v20261101",
    {},
    images_of_disks,
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "images", [AMIS, pytest.param(GCP_IMAGES, marks=pytest.mark.soak)], ids=["aws", "gcp"]
)
def test_nodes_have_the_image_of_the_lock_file_until_an_upgrade(tmp_path: Path, images: Images) -> None:
    there = images.project.make(tmp_path)
    # SSH by the cloud's own tunnel, so that there is no other machine.
    there.fleet(2, network={"bastion": False, "interconnect": "ethernet"}, placement="any")
    lock = tmp_path / ".orch" / "rehearsal" / "orch.lock"
    pins = {"image": images.older, "image_of": images.of, **images.more}
    lock.write_text(yaml.safe_dump({"version": 1, "fleets": {there.called: pins}}))

    said = there.up()
    assert said.code == 0, said.err
    assert images.of_nodes(there) == {images.older}
    assert yaml.safe_load(lock.read_text())["fleets"][there.called]["image"] == images.older
    assert there.preview(None, "--exit-code").code == 0

    said = there.orch("up", f"{there.called}.yml", "--yes", "--rehearse", "--upgrade")
    assert said.code == 0, said.err
    assert images.of_nodes(there) == {images.newer}
    assert len(there.nodes()) == 2
    assert yaml.safe_load(lock.read_text())["fleets"][there.called]["image"] == images.newer
    assert there.preview(None, "--exit-code").code == 0
