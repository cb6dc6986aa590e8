"""Plans on a Kubernetes cluster beyond the cases of `golden/`: decisions, fabrics, settings, queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.clouds.kubernetes_cases import Case
from kit.tracing import traced

from orch.components.kubernetes.fabrics import rows
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings

PLANNED = Case.planned()


@pytest.mark.parametrize("name", PLANNED)
def test_the_decisions_of_a_plan_give_the_same_plan(name: str) -> None:
    first = Case.of(name).plan()
    again = Case.of(name)
    again.data["pins"] = dict(first.pins)
    assert again.plan().objects == first.objects
    assert again.plan().queue == first.queue


def test_each_fabric_of_the_catalogue_has_a_plan_with_it() -> None:
    assert {Case.of(name).plan().queue.fabric for name in PLANNED} >= set(rows())


def test_a_plan_looks_at_each_setting_of_orch_yml(tmp_path: Path) -> None:
    settings = KubernetesSettings.model_validate({"type": "kubernetes"})
    fleet = Fleet.model_validate({"type": "fleet", "name": "train", **Case.wish})
    with traced() as reads:
        Case.given(fleet, settings).plan()
        Case.log_in(settings, tmp_path)
    own = KubernetesSettings.__annotations__.keys() & KubernetesSettings.model_fields.keys()
    assert [name for name in sorted(own) if not reads.of(settings, name)] == ["type"]


@pytest.mark.parametrize("name", PLANNED)
def test_a_queue_covers_all_that_a_pod_asks_for(name: str) -> None:
    made = Case.of(name).plan()
    if made.kueue is not None:
        assert set(made.kueue.quota) == set(made.queue.requests)
