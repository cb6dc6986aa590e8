"""What a pod is called by how its containers are, by the rules of a pod's lifecycle."""

from __future__ import annotations

from typing import Any

import pytest

from orch.rehearsal.kubernetes.kubelet.pod_status import PodContainer, status_of

WAITS = {"waiting": ("ImagePullBackOff", "no such image")}
RUNS = {"started": "2026-11-26T10:00:00Z"}


def ended(code: int) -> dict[str, Any]:
    return {**RUNS, "ended": (code, "2026-11-26T10:01:00Z")}


def status(
    *main: dict[str, Any], policy: str = "Never", init: tuple[dict[str, Any], ...] = (), **more: Any
) -> dict[str, Any]:
    def containers(rows: tuple[dict[str, Any], ...]) -> list[PodContainer]:
        return [PodContainer({"name": f"c{at}", "image": "i"}, **row) for at, row in enumerate(rows)]

    pod = {"spec": {"restartPolicy": policy}}
    return status_of(pod, containers(main), containers(init), "10.0.0.1", more.get("failure"))


@pytest.mark.parametrize(
    ("main", "policy", "phase"),
    [
        ((WAITS,), "Never", "Pending"),
        ((RUNS, WAITS), "Never", "Running"),
        ((RUNS, ended(0)), "Never", "Running"),
        ((ended(0), ended(0)), "Never", "Succeeded"),
        ((ended(0), ended(3)), "Never", "Failed"),
        ((ended(0),), "Always", "Running"),
        ((ended(3),), "OnFailure", "Running"),
        ((ended(0),), "OnFailure", "Succeeded"),
    ],
)
def test_the_phase_of_a_pod(main: tuple[dict[str, Any], ...], policy: str, phase: str) -> None:
    assert status(*main, policy=policy)["phase"] == phase


def test_a_pod_whose_first_container_failed_has_failed_before_the_others_began() -> None:
    assert status(WAITS, init=(ended(1),))["phase"] == "Failed"
    assert status(WAITS, init=(ended(0),))["phase"] == "Pending"


def test_why_a_container_waits_and_how_one_ended() -> None:
    rows = status(WAITS, ended(137))["containerStatuses"]
    assert rows[0]["state"]["waiting"] == {"reason": "ImagePullBackOff", "message": "no such image"}
    assert (rows[1]["state"]["terminated"]["exitCode"], rows[1]["ready"]) == (137, False)


def test_an_evicted_pod_is_a_disruption() -> None:
    told = status(RUNS, failure=("Evicted", "low on memory"))
    assert (told["phase"], told["reason"], told["message"]) == ("Failed", "Evicted", "low on memory")
    assert {"DisruptionTarget"} <= {row["type"] for row in told["conditions"]}
    assert "DisruptionTarget" not in {row["type"] for row in status(RUNS)["conditions"]}
