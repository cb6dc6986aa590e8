"""Every case of `golden/`: what a fleet becomes on a Kubernetes cluster, or what is wrong with it.

A case holds `fleet`, `settings` of orch.yml, the `cluster` (kit/kubernetes/kubernetes_cases.py), `pins` and
`tags`.
`ORCHCTL_REWRITE_GOLDEN=1 pytest tests/components/kubernetes` writes the answers anew; read the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.kubernetes.kubernetes_cases import Case, plan_with
from kit.tracing import traced

from orch.components.kubernetes.backend import jump_note
from orch.components.kubernetes.fabrics import rows
from orch.components.kubernetes.login import kubeconfig_file
from orch.components.kubernetes.plan import KubernetesPlan
from orch.spec.findings import PlanErrors
from orch.spec.models.backends.kubernetes import KubernetesSettings

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.yml"))
GOOD = [name for name in CASES if not name.startswith("bad-")]


def case(name: str) -> Case:
    return Case(yaml.safe_load((GOLDEN / f"{name}.yml").read_text()))


def written(plan: KubernetesPlan) -> dict[str, Any]:
    """The plan in the form of its file: what is made, and what else is decided."""
    fields = asdict(plan)
    queue = plan.queue.model_dump(mode="json", exclude_defaults=True)
    keep = ("interconnect", "namespace_labels", "service_account", "pins", "reasons", "warnings")
    told = {name: fields[name] for name in keep}
    return json.loads(json.dumps({**told, "queue": queue, "objects": plan.objects}, default=str))


def outcome(name: str) -> dict[str, Any]:
    try:
        return written(case(name).plan())
    except PlanErrors as error:
        found = [asdict(each) for each in error.findings]
        return {"exit_code": int(error.exit_code), "findings": json.loads(json.dumps(found, default=str))}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_as_written_down(name: str) -> None:
    answer = outcome(name)
    file = GOLDEN / f"{name}.json"
    if os.environ.get("ORCHCTL_REWRITE_GOLDEN"):
        file.write_text(json.dumps(answer, indent=1) + "\n")
    assert answer == json.loads(file.read_text())
    assert ("findings" in answer) == (name not in GOOD)


def test_every_answer_belongs_to_a_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == CASES


@pytest.mark.parametrize("name", GOOD)
def test_the_decisions_of_a_plan_give_the_same_plan(name: str) -> None:
    first = case(name).plan()
    again = case(name)
    again.pins = dict(first.pins)
    assert again.plan().objects == first.objects
    assert again.plan().queue == first.queue


def test_each_fabric_of_the_catalogue_has_a_plan_with_it() -> None:
    assert {case(name).plan().queue.fabric for name in GOOD} >= set(rows())


def test_a_plan_looks_at_each_setting_of_orch_yml(tmp_path: Path) -> None:
    settings = KubernetesSettings.model_validate({"type": "kubernetes"})
    with traced() as reads:
        plan_with(settings)
        kubeconfig_file(settings, tmp_path)
        jump_note(settings)
    own = KubernetesSettings.__annotations__.keys() & KubernetesSettings.model_fields.keys()
    assert [name for name in sorted(own) if not reads.of(settings, name)] == ["type"]


@pytest.mark.parametrize("name", GOOD)
def test_a_queue_covers_all_that_a_pod_asks_for(name: str) -> None:
    made = case(name).plan()
    if made.kueue is not None:
        assert set(made.kueue.quota) == set(made.queue.requests)
