"""Which default image a job gets, and what each stands on: decided without Docker."""

from __future__ import annotations

from typing import Any

import pytest

from orch.images import JobImage, can_build, default_image, job_image, resolve, tag, variants
from orch.images.variants import DEBIAN_RELEASES, PYTHONS, recipe
from orch.spec.models import Task
from orch.spec.models.run import PYTHONS as PYTHONS_OF_TASKS
from orch.spec.state import FleetState, Gpus, NodeState


def fleet(*vendors: str | None, **more: Any) -> FleetState:
    nodes = tuple(
        NodeState(
            index=index,
            name=f"n{index}",
            address="127.0.0.1",
            user="root",
            host_key="k",
            gpus=Gpus(count=8, vendor=vendor) if vendor else Gpus(),
        )
        for index, vendor in enumerate(vendors)
    )
    return FleetState(name="lab", stack="lab", backend="ssh", nodes=nodes, **more)


def chosen(task: dict[str, Any], on: FleetState, default: str | None = None) -> str:
    made = Task.model_validate({"commands": ["x"], **task})
    return job_image(made, on, default, {}).reference


@pytest.mark.parametrize(
    ("task", "on", "image"),
    [
        ({}, fleet(None), "orch/job"),
        ({}, fleet("nvidia", "nvidia"), "orch/nvidia-python3.11"),
        ({}, fleet("nvidia", None), "orch/job"),
        ({}, fleet("nvidia", "amd"), "orch/job"),
        ({}, fleet("tenstorrent"), "orch/job"),
        ({}, fleet("nvidia", simulated=True), "orch/job"),
        ({}, fleet("nvidia", image="own:1"), "own:1"),
        ({"python": "3.12"}, fleet(None), "orch/python3.12"),
        ({"python": "3.12"}, fleet("amd"), "orch/amd-python3.12"),
        # Who asks for a Python wants the default image with it, not the fleet's.
        ({"python": "3.12"}, fleet("nvidia", image="own:1"), "orch/nvidia-python3.12"),
        ({"nvcc": "true"}, fleet("nvidia"), "orch/nvcc-python3.11"),
        ({"nvcc": "true", "python": "3.13"}, fleet(None), "orch/nvcc-python3.13"),
        ({"docker": "true"}, fleet("nvidia"), "orch/docker"),
        ({"image": "theirs"}, fleet("nvidia", image="own:1"), "theirs"),
    ],
)
def test_an_image_follows_from_the_task_and_the_accelerators_of_its_fleet(
    task: dict[str, Any], on: FleetState, image: str
) -> None:
    assert chosen(task, on) == image


def test_the_projects_default_is_taken_where_task_and_fleet_ask_for_nothing() -> None:
    assert chosen({}, fleet("nvidia"), "orch/job") == "orch/job"
    assert chosen({"python": "3.9"}, fleet(None), "theirs") == "orch/python3.9"


def test_an_image_may_stand_for_another_one() -> None:
    replaced = {"nvcr.io/nvidia/pytorch:24.01-py3": "orch/job", "orch/python3.12": "mirror/python:3.12"}
    task = Task.model_validate({"image": "nvcr.io/nvidia/pytorch:24.01-py3"})
    assert job_image(task, fleet(None), None, replaced) == JobImage("orch/job", task.image)
    task = Task.model_validate({"python": "3.12", "commands": ["x"]})
    assert job_image(task, fleet(None), None, replaced) == JobImage("mirror/python:3.12", "orch/python3.12")
    task = Task.model_validate({"image": "debian"})
    assert job_image(task, fleet(None), None, replaced) == JobImage("debian")


@pytest.mark.parametrize("vendor", [None, "nvidia", "amd", "intel"])
@pytest.mark.parametrize("python", [None, *PYTHONS])
@pytest.mark.parametrize("nvcc", [False, True])
def test_each_image_that_is_chosen_can_be_built_by_this_version(
    vendor: str | None, python: str | None, nvcc: bool
) -> None:
    image = default_image(vendor, python=python, nvcc=nvcc)
    assert can_build(resolve(image))


def test_images_of_ours_cover_what_the_language_takes() -> None:
    assert PYTHONS == PYTHONS_OF_TASKS


def test_each_variant_stands_on_one_base_and_has_a_tag_of_its_own() -> None:
    for name in variants():
        made = recipe(name)
        assert made is not None
        assert sum(each is not None for each in (made.release, made.registry_image, made.own_image)) == 1
    assert len({tag(name).partition(":")[2] for name in variants()}) == len(variants())


def test_pythons_of_debian_need_no_registry() -> None:
    for version, release in DEBIAN_RELEASES.items():
        for kind in ("nvidia-", "nvcc-", "amd-"):
            made = recipe(f"{kind}python{version}")
            assert made is not None
            assert made.release == release
    official = recipe("python3.12")
    assert official is not None
    assert official.registry_image == "python:3.12-slim-bookworm"


def test_an_older_versions_image_of_ours_cannot_be_built() -> None:
    assert not can_build("orch/python3.13:000000000000")
    assert not can_build("orch/nothing:000000000000")
    assert not can_build("python:3.13")
