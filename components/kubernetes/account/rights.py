"""What orch does on a cluster: verbs and resources, `pods/exec` as RBAC writes them.

`docs/reference/kubernetes.md` lists them, `examples/kubernetes/rbac.yml` grants them.
"""

from __future__ import annotations

from orch.components.kubernetes.account.facts import COMPUTE_DOMAINS, KUEUE, SCHEDULING

OF_RUNS: tuple[tuple[str, str], ...] = (
    ("create", "jobs.batch"),
    ("get", "jobs.batch"),
    ("list", "jobs.batch"),
    ("patch", "jobs.batch"),
    ("delete", "jobs.batch"),
    ("create", "services"),
    ("get", "services"),
    ("patch", "services"),
    ("delete", "services"),
    ("get", "pods"),
    ("list", "pods"),
    ("get", "pods/log"),
    # A WebSocket begins as GET: both verbs since Kubernetes 1.35, the first alone before.
    ("get", "pods/exec"),
    ("create", "pods/exec"),
    ("get", "pods/portforward"),
    ("create", "pods/portforward"),
    ("create", "secrets"),
    ("patch", "secrets"),
    ("delete", "secrets"),
    ("list", "events"),
)
"""What runs do in the namespace of their fleet."""

OF_KUEUE_RUNS: tuple[tuple[str, str], ...] = (("get", f"workloads.{KUEUE}"), ("list", f"workloads.{KUEUE}"))
OF_POD_GROUPS: tuple[tuple[str, str], ...] = tuple(
    (verb, f"podgroups.{SCHEDULING}") for verb in ("create", "get", "patch", "delete")
)

OF_COMPUTE_DOMAINS: tuple[tuple[str, str], ...] = tuple(
    (verb, f"computedomains.{COMPUTE_DOMAINS}") for verb in ("create", "get", "patch", "delete")
)

MADE: tuple[str, ...] = ("get", "create", "patch", "delete")
"""What is done to an object that a fleet is made with: server-side apply asks for `patch` and `create`."""
OF_QUEUES: tuple[tuple[str, str], ...] = tuple(
    (verb, f"{plural}.{KUEUE}")
    for plural in ("topologies", "resourceflavors", "clusterqueues", "localqueues")
    for verb in MADE
)
OF_ACCOUNTS: tuple[tuple[str, str], ...] = tuple((verb, "serviceaccounts") for verb in MADE)
OF_NAMESPACES: tuple[tuple[str, str], ...] = tuple((verb, "namespaces") for verb in MADE)

NEEDED_OF_RUNS = frozenset(
    {
        "create jobs.batch",
        "get jobs.batch",
        "patch jobs.batch",
        "delete jobs.batch",
        "create services",
        "patch services",
        "get pods",
        "list pods",
        "get pods/exec",
        "create pods/exec",
    }
)
"""Without which no run works; without the others some runs do."""

GRANT = (
    "whoever runs the cluster grants it: docs/reference/kubernetes.md lists what is needed, "
    "examples/kubernetes/rbac.yml is that to apply"
)
