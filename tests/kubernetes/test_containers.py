"""What a pod's container is for Docker, by the rules of Kubernetes' documents."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from orch.rehearsal.kubernetes.kubelet.containers import (
    CannotStart,
    environment,
    expanded,
    limits,
    mounts,
    quantity,
)

POD: dict[str, Any] = {
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "u1",
        "annotations": {"batch.kubernetes.io/job-completion-index": "3"},
        "labels": {"orch.dev/run": "train"},
    },
    "spec": {"nodeName": "gpu-1", "serviceAccountName": "jobs"},
}
DOCUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("secrets", "token"): {"data": {"HF_TOKEN": b64encode(b"s3cr$t").decode()}},
    ("configmaps", "names"): {"data": {"A": "1", "B": "2"}, "binaryData": {"C": b64encode(b"\xff").decode()}},
}


def lookup(plural: str, name: str) -> dict[str, Any] | None:
    return DOCUMENTS.get((plural, name))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8.0),
        ("500m", 0.5),
        ("64Gi", 64 * 2**30),
        ("1k", 1000.0),
        (2, 2.0),
        ("1e3", 1000.0),
        ("0.5Mi", 2**19),
    ],
)
def test_quantities(text: object, number: float) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "8 GiB", "GPU", "1X"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match=r"no quantity|could not convert"):
        quantity(text)


def test_variables_of_fields_secrets_and_each_other() -> None:
    container: dict[str, Any] = {
        "envFrom": [{"configMapRef": {"name": "names"}, "prefix": "X_"}],
        "resources": {"limits": {"cpu": "2500m", "memory": "2Gi"}},
        "env": [
            {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": _annotation("job-completion-index")}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "HF_TOKEN"}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k", "optional": True}}},
            {
                "name": "MIB",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "WHO", "value": "rank $(RANK) of $(NODE), $$(RANK), $(UNKNOWN)"},
        ],
    }
    assert environment(POD, container, lookup, "10.0.0.9") == {
        "X_A": "1",
        "X_B": "2",
        "X_C": "\udcff",
        "RANK": "3",
        "NODE": "gpu-1",
        "IP": "10.0.0.9",
        "HF_TOKEN": "s3cr$t",
        "MIB": "2048",
        "WHO": "rank 3 of gpu-1, $(RANK), $(UNKNOWN)",
    }


@pytest.mark.parametrize(
    "source",
    [
        {"secretKeyRef": {"name": "no", "key": "k"}},
        {"configMapKeyRef": {"name": "names", "key": "k"}},
        {"fieldRef": {"fieldPath": "spec.nothing"}},
    ],
)
def test_what_is_not_there_keeps_a_container_from_starting(source: dict[str, Any]) -> None:
    with pytest.raises(CannotStart) as refused:
        environment(POD, {"env": [{"name": "A", "valueFrom": source}]}, lookup, "")
    assert refused.value.reason == "CreateContainerConfigError"


def test_two_dollar_signs_are_one() -> None:
    assert expanded("$$(A) $(A) $(B) $A", {"A": "1"}) == "$(A) 1 $(B) $A"


def test_mounts_and_limits() -> None:
    volumes = {
        "data": {"Type": "bind", "Source": "/srv/data"},
        "shm": {"Type": "volume", "Source": "v1"},
        "keys": {"Type": "bind", "Source": "/srv/keys", "ReadOnly": True},
    }
    container = {
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "subPath": "a/b"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "keys", "mountPath": "/keys"},
        ],
        "resources": {"limits": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "8"}},
    }
    assert [
        (row["Type"], row["Source"], row["Target"], row["ReadOnly"]) for row in mounts(container, volumes)
    ] == [
        ("bind", "/srv/data/a/b", "/data", False),
        ("volume", "v1", "/dev/shm", False),
        ("bind", "/srv/keys", "/keys", True),
    ]
    assert limits(container) == {"Memory": 2**30, "MemorySwap": 2**30, "NanoCpus": 1_500_000_000}
    with pytest.raises(CannotStart):
        mounts({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}, volumes)


def _annotation(name: str) -> str:
    return f"metadata.annotations['batch.kubernetes.io/{name}']"
