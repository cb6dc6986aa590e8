"""What a plan must know of a cluster, asked once: each kind of list by pages, no list of all pods per node.

What the caller may not read is told as that, and stops nothing here: the planner says whether it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from orch.components.kubernetes.account.facts import (
    ATTACHMENT_KIND,
    ATTACHMENTS,
    COMMON_NAMESPACE,
    COMPUTE_DOMAINS,
    KUEUE,
    SCHEDULING,
    ClusterFacts,
    apis_of,
    cluster_queues_of,
    flavors_of,
    local_queues_of,
    namespace_of,
    networks_of,
    nodes_of,
    topologies_of,
)
from orch.components.kubernetes.account.rights import (
    OF_ACCOUNTS,
    OF_COMPUTE_DOMAINS,
    OF_KUEUE_RUNS,
    OF_NAMESPACES,
    OF_POD_GROUPS,
    OF_QUEUES,
    OF_RUNS,
)
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.errors import AdmissionDenied, ApiRefusal, Forbidden, Invalid, NotFound

T = TypeVar("T")

AT_ONCE = 16
"""Questions to the API server at a time."""

CLUSTER_WIDE = ("topologies", "resourceflavors", "clusterqueues", "namespaces", "nodes")

# A pod that any pod security level takes, to see whether the API server keeps a field: those of a feature
# that is off are dropped. Source: k8s.io/kubernetes pkg/api/pod/util.go, dropDisabledFields.
_TRIED: Mapping[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "orch-plan-"},
    "spec": {
        "schedulingGroup": {"podGroupName": "orch-plan"},
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "none",
                "image": "none",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}


class _Reading:
    """Reads, and notes what could not be read."""

    def __init__(self, client: KubernetesClient) -> None:
        self.client = client
        self.unread: list[str] = []

    def read(self, what: str, ask: Callable[[], T]) -> T | None:
        """What `ask` answers; None where the caller may not know."""
        try:
            return ask()
        except Forbidden as error:
            self.unread.append(f"{what}: {error.summary}")
            return None

    def items(self, what: str, path: str) -> list[dict[str, Any]] | None:
        return self.read(what, lambda: self.client.items(path))


def gather_facts(client: KubernetesClient, namespace: str) -> ClusterFacts:
    """Read the cluster for a plan in a namespace. Raises KubernetesErrors where it does not answer."""
    reading = _Reading(client)
    server = str(client.get("/version").get("gitVersion", ""))
    apis = apis_of(_discovered(client, (KUEUE, SCHEDULING, COMPUTE_DOMAINS, ATTACHMENTS)))
    kueue = _newest(apis, KUEUE, "clusterqueues")
    attachments = _newest(apis, ATTACHMENTS, ATTACHMENT_KIND)
    beside = _Reading(client)  # what is not read of another namespace is told where it is missed
    acts = _acts(apis)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="orch-facts") as threads:

        def listed(what: str, kind: str, where: str | None = None) -> Future[list[dict[str, Any]] | None]:
            return threads.submit(reading.items, what, api_path("v1", kind, where))

        nodes = listed("nodes", "nodes")
        pods = listed("what pods request of nodes", "pods")
        place = threads.submit(
            reading.read,
            f"namespace {namespace}",
            lambda: (client.find(api_path("v1", "namespaces", name=namespace)),),
        )
        accounts = listed("service accounts", "serviceaccounts", namespace)
        identity = threads.submit(client.identity)
        ranges = listed("limit ranges", "limitranges", namespace)
        quotas = listed("quotas", "resourcequotas", namespace)
        queues = {
            plural: threads.submit(reading.items, plural, api_path(f"{KUEUE}/{kueue}", plural, where))
            for plural, where in (
                ("localqueues", namespace),
                ("clusterqueues", None),
                ("resourceflavors", None),
                ("topologies", None),
                ("workloadpriorityclasses", None),
            )
            if kueue is not None and plural in apis[KUEUE][kueue]
        }
        networks = {
            where: threads.submit(
                (reading if where == namespace else beside).items,
                "networks that pods may join",
                api_path(f"{ATTACHMENTS}/{attachments}", ATTACHMENT_KIND, where),
            )
            for where in dict.fromkeys((namespace, COMMON_NAMESPACE))
            if attachments is not None
        }
        may = {act: threads.submit(_may, client, act, namespace) for act in acts}
        allowed = frozenset(" ".join(act) for act, answer in may.items() if answer.result())
        of_kueue = {plural: answer.result() for plural, answer in queues.items()}
        joined = {where: answer.result() for where, answer in networks.items()}
    found, known, on_nodes = place.result(), accounts.result(), pods.result()
    rows, limits, sums = nodes.result(), ranges.result(), quotas.result()
    exists = found is None or found[0] is not None
    groups: bool | None = False
    if _newest(apis, SCHEDULING, "podgroups") is not None:
        groups = _keeps_groups(client, namespace if exists else "default")
    return ClusterFacts(
        server=server,
        apis=apis,
        nodes=None if rows is None else nodes_of(rows, on_nodes),
        namespace=None if found is None else namespace_of(namespace, found[0]),
        service_accounts=None
        if known is None
        else frozenset(str(each["metadata"]["name"]) for each in known),
        local_queues=_list(of_kueue, "localqueues", local_queues_of),
        cluster_queues=_list(of_kueue, "clusterqueues", cluster_queues_of),
        flavors=_list(of_kueue, "resourceflavors", flavors_of),
        topologies=_list(of_kueue, "topologies", topologies_of),
        priority_classes=_list(of_kueue, "workloadpriorityclasses", _values),
        pod_groups=groups,
        networks={where: networks_of(rows) for where, rows in joined.items() if rows is not None},
        pods_read=on_nodes is not None,
        allowed=allowed,
        denied=frozenset(" ".join(act) for act in acts) - allowed,
        unread=tuple(sorted(reading.unread)),
        limit_ranges=None if limits is None else tuple(limits),
        quotas=None if sums is None else tuple(sums),
        identity=identity.result(),
    )


def _acts(apis: Mapping[str, Mapping[str, frozenset[str]]]) -> list[tuple[str, str]]:
    """Return what the caller may have to do on a cluster with these APIs."""
    acts = [*OF_RUNS, *OF_ACCOUNTS, *OF_NAMESPACES]
    acts += [*OF_QUEUES, *OF_KUEUE_RUNS] if _newest(apis, KUEUE, "clusterqueues") is not None else []
    acts += OF_POD_GROUPS if _newest(apis, SCHEDULING, "podgroups") else []
    acts += OF_COMPUTE_DOMAINS if _newest(apis, COMPUTE_DOMAINS, "computedomains") else []
    return acts


def _discovered(client: KubernetesClient, groups: Collection[str]) -> Iterable[dict[str, Any]]:
    """The resource lists of these groups, as far as the cluster has them."""
    for group in (client.get("/apis").get("groups")) or ():
        if group.get("name") in groups:
            for version in group.get("versions") or ():
                found = client.find(f"/apis/{version['groupVersion']}")
                if found is not None:
                    yield found


def _newest(apis: Mapping[str, Mapping[str, frozenset[str]]], group: str, plural: str) -> str | None:
    return ClusterFacts("", apis, None, None).version_of(group, plural)


def _may(client: KubernetesClient, act: tuple[str, str], namespace: str) -> bool:
    verb, words = act
    resource, _, group = words.partition(".")
    resource, _, part = resource.partition("/")
    where = None if resource in CLUSTER_WIDE else namespace
    name = namespace if resource == "namespaces" and verb in ("get", "patch", "delete") else ""
    return client.can(verb, resource, group=group, namespace=where, subresource=part, name=name)


def _keeps_groups(client: KubernetesClient, namespace: str) -> bool | None:
    """Whether the API server takes pods of a PodGroup, tried without making any."""
    try:
        pod = client.create(api_path("v1", "pods", namespace), _TRIED, dryRun="All", fieldValidation="Ignore")
    except (Forbidden, AdmissionDenied, NotFound):
        return None
    except Invalid as error:
        return False if any("schedulingGroup" in field for field, _ in error.fields) else None
    except ApiRefusal:
        return None
    return "schedulingGroup" in (pod.get("spec") or {})


def _list(
    listed: Mapping[str, list[dict[str, Any]] | None], plural: str, read: Callable[[Any], T]
) -> T | None:
    rows = listed.get(plural, [])
    return None if rows is None else read(rows)


def _values(documents: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    return {str(each["metadata"]["name"]): int(each.get("value") or 0) for each in documents}


def _names(documents: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted(str(each["metadata"]["name"]) for each in documents))
