"""pulumi_gcp in the real engine: how the simulated provider is configured, what it tells when it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.engine.simulated_stack import SimulatedStack

from orch.stacks.engine import install as engines

pytestmark = [
    pytest.mark.skipif(engines.find() is None, reason="no Pulumi engine: `orch engine install`"),
    pytest.mark.usefixtures("forked_providers"),
]


def program(**settings: Any) -> Callable[[], None]:
    """A network with two subnets of one range, which GCP refuses; and a provider with these settings."""

    def run() -> None:
        import pulumi
        import pulumi_gcp as gcp

        provider = gcp.Provider("gcp", region="us-central1", **settings)
        opts = pulumi.ResourceOptions(provider=provider)
        network = gcp.compute.Network("n", auto_create_subnetworks=False, opts=opts)
        first = gcp.compute.Subnetwork("a", network=network.id, ip_cidr_range="10.0.0.0/24", opts=opts)
        after = pulumi.ResourceOptions(provider=provider, depends_on=[first])
        gcp.compute.Subnetwork("b", network=network.id, ip_cidr_range="10.0.0.0/25", opts=after)

    return run


@pytest.fixture
def stack(tmp_path: Path) -> SimulatedStack:
    return SimulatedStack.make(tmp_path)


def test_the_provider_refuses_to_work_outside_a_rehearsal(stack: SimulatedStack) -> None:
    done = stack.call("preview", program=program(project="acme"))
    assert done.finished.code != 0
    assert "there is no rehearsal here" in done.text
    assert "remove this pulumi-resource-gcp from PATH" in done.text


def test_a_project_it_must_have_and_credentials_it_does_not_look_at(stack: SimulatedStack) -> None:
    cloud = stack.rehearsal.gcp
    done = stack.call("preview", program=program(credentials="no key"))
    assert done.finished.code != 0
    assert "project: required field is not set" in done.text

    settings = {"project": "acme", "credentials": "no key", "default_labels": {"team": "research"}}
    done = stack.call("up", "--yes", "--skip-preview", program=program(**settings))
    assert done.finished.code != 0
    assert "Error creating Subnetwork: googleapi: Error 400: " in done.errors
    assert "Traceback" not in done.text
    # What was made before is kept, what failed is not; names are of the engine's own making.
    made = {each.partition("/global/")[0] for each in cloud.things("network")}
    assert made == {"projects/acme"}
    assert len(cloud.things("subnetwork")) == 1
    assert stack.destroy().finished.code == 0
    assert cloud.everything() == {}
