"""What gangs, their objects and their labels are called. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from orch.runner.errors import BadTask

CONTAINER = "job"
"""The container of a pod that the run's job is started in."""

MANAGED_BY = "app.kubernetes.io/managed-by"
PROJECT, FLEET, RUN, ATTEMPT, GANG = (
    f"orch.dev/{each}" for each in ("project", "fleet", "run", "attempt", "gang")
)
RUN_ID = "orch.dev/run-id"
RELEASED = "orch.dev/released"
"""The annotation of a Job that has been let go: all that it owns was there by then."""

QUEUE_NAME, QUEUE_PRIORITY, QUEUE_TIME = (
    f"kueue.x-k8s.io/{each}" for each in ("queue-name", "priority-class", "max-exec-time-seconds")
)
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
HOSTNAME = "kubernetes.io/hostname"

CODE = "ORCH423"
LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_JOB_LABELS = ("job-name", "controller-uid")
_RESERVED = ("kubernetes.io", "k8s.io", "x-k8s.io", "orch.dev")


def gang_name(run: str, project: str, token: str, attempt: int) -> str:
    """`orch-<run>-<hash>`, at most 40 characters, a DNS label: pods and claims are called after it."""
    readable = re.sub(r"[^a-z0-9]+", "-", run.lower())[:28].strip("-") or "run"
    digest = hashlib.sha256(json.dumps([project, run, token, attempt]).encode()).hexdigest()
    return f"orch-{readable}-{digest[:6]}"


def rank_name(gang: str, index: int) -> str:
    """The name of a pod of a gang in DNS, within its namespace: known before the pod is."""
    return f"{gang}-{index}.{gang}"


def check_labels(tags: Mapping[str, str]) -> None:
    """Raises BadTask for a tag that cannot be a label, or would change what Kubernetes or Kueue do.

    Source: Kubernetes documentation, "Labels and Selectors", syntax and character set.
    """
    for key, value in tags.items():
        prefix, slash, name = key.rpartition("/")
        good = _LABEL_NAME.fullmatch(name) and (
            not slash or (len(prefix) <= 253 and _DNS_NAME.fullmatch(prefix))
        )
        path = f"tags.{key}"
        if not good:
            raise BadTask(
                f"the tag {key!r} is no name of a label of Kubernetes",
                path=path,
                hint="letters, digits, `-`, `_` and `.`, 63 at most; `example.com/` may stand before it",
                code=CODE,
            )
        if key in _JOB_LABELS or any(prefix == each or prefix.endswith(f".{each}") for each in _RESERVED):
            raise BadTask(
                f"the tag {key!r} is a label that Kubernetes, Kueue or orch set themselves",
                path=path,
                hint="use another prefix, or none",
                code=CODE,
            )
        if not LABEL_VALUE.fullmatch(value):
            raise BadTask(
                f"the tag {key!r} has a value that no label of Kubernetes can have: {value!r}",
                path=path,
                hint="letters, digits, `-`, `_` and `.`, 63 at most, letters or digits at both ends",
                code=CODE,
            )
