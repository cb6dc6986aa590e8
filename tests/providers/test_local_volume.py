"""Local volumes outlive the image that looked at them first."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from kit.nodes.labmachine import docker

from orch import images
from orch.providers.orch.handler import OBSERVED, Difference, differences
from orch.providers.orch.local_volume import LocalVolumeHandler

INPUTS = {"name": "data-ab12cd", "image": "orch/node:000000000000", "external": False, "size_mib": 1024}


def test_another_image_is_no_change_and_another_size_is() -> None:
    later = {**INPUTS, "image": "orch/node:111111111111"}
    state = {**INPUTS, OBSERVED: {}}
    assert differences(LocalVolumeHandler(), state, later) == []
    assert differences(LocalVolumeHandler(), state, {**later, "size_mib": 2048}) == [
        Difference("size_mib", replaces=False, drifted=False)
    ]


@pytest.fixture
def earlier() -> Iterator[str]:
    """A name of a node image that another version has built."""
    name = f"orch/node:{secrets.token_hex(6)}"
    docker("tag", images.ensure("node", progress=print), name)
    yield name
    docker("rmi", name, check=False)


def test_a_volume_is_looked_at_and_removed_after_its_image_is_gone(earlier: str) -> None:
    handler = LocalVolumeHandler()
    name, outputs = handler.create({**INPUTS, "name": f"data-{secrets.token_hex(4)}", "image": earlier})
    state = {**INPUTS, **outputs, "name": name, "image": earlier}
    docker("rmi", earlier)
    assert handler.read(name, state) == {OBSERVED: {}}
    handler.delete(name, state)
    assert handler.read(name, state) is None
