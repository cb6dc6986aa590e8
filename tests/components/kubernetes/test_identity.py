"""Which cluster a fleet is on: what its plan records, and that it is refused on another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.clouds import kubernetes_cases
from kit.clouds.kubernetes_cases import Case

from orch.components.kubernetes.plan import KubernetesPlan
from orch.spec.errors import ExitCode
from orch.spec.findings import PlanErrors

CLUSTER = {"nodes": [{"name": "gpu", "count": 2, "allocatable": {"nvidia.com/gpu": "8"}}]}
FLEET = {"nodes": "0..2", "resources": {"gpu": "8"}}
PINS = {"backend": "kubernetes", "scope": "abc123", "context": "lab", "namespace": "work", "gang": "job"}


def planned(
    identity: str | None, pins: dict[str, str], monkeypatch: pytest.MonkeyPatch, context: str = "lab"
) -> KubernetesPlan:
    facts = kubernetes_cases.facts_of
    with monkeypatch.context() as patch:
        patch.setattr(
            kubernetes_cases, "facts_of", lambda data, where: replace(facts(data, where), identity=identity)
        )
        settings = {"contexts": [context]}
        return Case("given", {"fleet": FLEET, "cluster": CLUSTER, "settings": settings, "pins": pins}).plan()


def test_a_new_fleet_is_bound_to_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned("8d3f", {}, monkeypatch)
    assert (made.cluster_identifier, made.queue.cluster) == ("kube-system/8d3f", "8d3f")
    again = planned("8d3f", dict(made.pins), monkeypatch)
    assert (again.cluster_identifier, again.pins) == ("kube-system/8d3f", made.pins)
    unread = planned(None, dict(made.pins), monkeypatch)
    assert (unread.cluster_identifier, unread.pins, unread.queue) == (
        "kube-system/8d3f",
        made.pins,
        made.queue,
    )


def test_a_fleet_whose_cluster_is_unknown_gets_one_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(None, {}, monkeypatch)
    assert (made.cluster_identifier, made.queue.cluster) == ("lab", None)
    again = planned("8d3f", dict(made.pins), monkeypatch)
    # The official plugin makes all objects of a provider anew by another identifier.
    assert (again.cluster_identifier, again.queue.cluster, again.pins["cluster"]) == ("lab", "8d3f", "8d3f")
    assert planned("8d3f", dict(again.pins), monkeypatch).cluster_identifier == "lab"


@pytest.mark.parametrize("context", ["lab", "other"])
def test_a_fleet_is_refused_on_another_cluster(context: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanErrors) as told:
        planned("aaaa", {**PINS, "cluster": "8d3f"}, monkeypatch, context)
    assert told.value.exit_code is ExitCode.CONFLICT
    (found,) = told.value.findings
    assert (found.code, found.path) == ("ORCH459", "backends")
    assert found.summary == f"fleet train is on another cluster than context {context} leads to now"
    assert "8d3f" in str(found.detail)
    assert "`orch down train --force`" in str(found.hint)


def test_the_same_cluster_serves_by_a_context_of_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned("8d3f", {**PINS, "cluster": "8d3f"}, monkeypatch, "renamed")
    assert made.pins["context"] == "renamed"


def test_what_one_user_may_not_read_is_kept_and_what_another_may_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = planned("server/12", {}, monkeypatch)
    assert (made.cluster_identifier, made.pins["cluster"]) == ("kube-system/server/12", "server/12")
    admin = planned("8d3f+server/12", dict(made.pins), monkeypatch)
    assert (admin.cluster_identifier, admin.pins["cluster"]) == ("kube-system/server/12", "8d3f+server/12")
    assert planned("server/12", dict(admin.pins), monkeypatch).pins["cluster"] == "8d3f+server/12"
    # By the UID it is the same cluster, whatever address leads there.
    assert planned("8d3f+server/99", dict(admin.pins), monkeypatch).pins["cluster"] == "8d3f+server/12"
    with pytest.raises(PlanErrors, match="another cluster"):
        planned("server/99", dict(admin.pins), monkeypatch)


def test_pins_of_another_backend_are_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned("8d3f", {"backend": "aws", "cluster": "x"}, monkeypatch)
    assert made.pins["cluster"] == "8d3f"
