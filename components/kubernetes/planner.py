"""What a fleet becomes on a Kubernetes cluster: how pods are asked for, and what is made for that. Pure.

No Pulumi, no clock, no chance: the same fleet, facts and previous decisions give the same plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orch.components.cloud.sizing import disk_gb
from orch.components.kubernetes import explain as told
from orch.components.kubernetes.account.facts import POD_SECURITY, ClusterFacts
from orch.components.kubernetes.account.rights import (
    GRANT,
    MADE,
    NEEDED_OF_RUNS,
    OF_COMPUTE_DOMAINS,
    OF_KUEUE_RUNS,
    OF_POD_GROUPS,
    OF_RUNS,
)
from orch.components.kubernetes.candidates import KubernetesCandidate
from orch.components.kubernetes.node_choice import chosen_nodes, pod_networks
from orch.components.kubernetes.plan import (
    CLUSTER_ID,
    OTHER_CLUSTER,
    Chosen,
    KubernetesPlan,
    Queueing,
    base_name,
    labels_of,
)
from orch.components.kubernetes.queueing import (
    PodPlacement,
    given_queue,
    own_queue,
    placement_of,
    queueing_of,
)
from orch.components.request import PriorState
from orch.runner.kubernetes.identity import difference, joined
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding, PlanErrors, settle
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.state import PodQueue
from orch.spec.suggest import counted, few, hint_for

_LABEL_KEY = re.compile(r"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class Context:
    """What a plan is made of besides the fleet.

    `scope`: of a new stack; `settings`: the backend's; `kubeconfig`: the path of its file, None for the
    user's own; `login`: what the provider is configured with; `tags`: the project's.
    """

    scope: str
    settings: KubernetesSettings
    kubeconfig: str | None = None
    login: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


class KubernetesPlanner:
    """The plan of one fleet at one cluster."""

    def __init__(
        self,
        fleet: Fleet,
        candidate: KubernetesCandidate,
        facts: ClusterFacts,
        previous: PriorState,
        context: Context,
    ) -> None:
        self.fleet, self.candidate, self.facts = fleet, candidate, facts
        self.previous, self.context, self.settings = previous, context, context.settings
        self.scope = previous.pins.get("scope", context.scope)
        self.base = base_name(fleet.name, self.scope)
        self.tags = {**context.tags, **fleet.tags}
        self.labels = labels_of(fleet.name, self.scope, self.tags)
        self.mark = next(value for key, value in self.labels.items() if key == "orch.dev/mark")

    def plan(self) -> KubernetesPlan:
        """Return the plan.

        Raises PlanErrors with all that is wrong: ORCH200, 223, 450, 451, 452, 453, 454, 455, 457; with
        ORCH459 alone where the fleet is on another cluster than this.
        """
        fleet, facts, settings, context = self.fleet, self.facts, self.settings, self.context
        cluster, identifier = _cluster(fleet, self.candidate, facts, self.previous, context)
        namespace = self.candidate.namespace
        findings = [*_tag_findings(self.tags), *_disk_findings(fleet)]
        makes_namespace, of_namespace = _namespace(facts, namespace, self.mark)
        findings += of_namespace
        queueing, of_queue = queueing_of(facts, settings, self.mark, self.base, new_namespace=makes_namespace)
        findings += of_queue
        chosen, of_nodes = chosen_nodes(fleet, facts, settings, self.previous, queueing)
        findings += of_nodes
        if chosen is None:
            raise PlanErrors(findings)
        networks, of_networks = pod_networks(fleet, facts, settings, namespace, chosen)
        findings += of_networks
        pods = _most(fleet, chosen)
        findings += _count_findings(fleet, chosen, pods)
        findings += _security(facts, namespace, chosen, made=makes_namespace)
        account, of_account = _account(facts, settings, self.base)
        findings += of_account
        findings += _rights(facts, queueing, chosen)
        place = placement_of(fleet, settings, queueing, chosen, pods)
        findings += place.findings
        kueue = own_queue(facts, chosen, pods, place.levels) if queueing.made else None
        if queueing.gang == "kueue" and not queueing.made:
            findings += given_queue(facts, queueing, chosen, pods)
        findings += [
            Finding(
                "ORCH456", "backends", f"not checked, as you may not read it: {each}", severity=Severity.NOTE
            )
            for each in facts.unread
        ]
        queue = self._queue(
            queueing, chosen, place, pods=pods, networks=networks, account=account, cluster=cluster
        )
        warnings = settle(findings)
        level = {POD_SECURITY: "privileged"} if chosen.privileges else {}
        return KubernetesPlan(
            fleet=fleet.name,
            scope=self.scope,
            base=self.base,
            labels=self.labels,
            placement=fleet.placement,
            interconnect=chosen.interconnect,
            queue=queue,
            namespace_labels=level if makes_namespace else None,
            service_account=account == self.base,
            kueue=kueue,
            login=context.login,
            cluster_identifier=identifier,
            job_image=fleet.image,
            env={key: value for key, value in fleet.env.items() if value is not None},
            protect=fleet.protect,
            pins=self._pins(queueing, chosen, cluster, identifier),
            reasons=tuple(
                told.reasons(fleet, self.candidate, facts, queue, chosen, queueing, kueue, makes_namespace)
            ),
            warnings=warnings,
        )

    def _queue(
        self,
        queueing: Queueing,
        chosen: Chosen,
        place: PodPlacement,
        *,
        pods: int,
        networks: tuple[str, ...],
        account: str | None,
        cluster: str | None,
    ) -> PodQueue:
        """Return how runs ask for their pods."""
        settings = self.settings
        return PodQueue(
            context=self.context.login.get("context"),
            kubeconfig=self.context.kubeconfig,
            namespace=self.candidate.namespace,
            mark=self.mark,
            gang=queueing.gang,
            local_queue=queueing.local_queue,
            service_account=account,
            pods=pods,
            cpus=chosen.cpus,
            memory_mib=chosen.memory_mib,
            gpus=chosen.gpus,
            requests=dict(chosen.requests),
            gpu_resource=chosen.gpu_resource,
            fabric=chosen.fabric,
            fabric_resource=chosen.fabric_resource,
            networks=networks,
            node_selector={**chosen.labels, **settings.node_selector},
            tolerations=tuple(dict(each) for each in chosen.tolerations),
            topology_key=place.label,
            topology_required=place.required,
            priority_classes=dict(self.facts.priority_classes or {}) if queueing.gang == "kueue" else {},
            start_limit_s=settings.start_limit_s,
            price_hourly=None,
            cluster=cluster,
        )

    def _pins(
        self, queueing: Queueing, chosen: Chosen, cluster: str | None, identifier: str
    ) -> dict[str, str]:
        return {
            "backend": "kubernetes",
            "scope": self.scope,
            "indices": "",
            "context": self.candidate.context or "",
            "namespace": self.candidate.namespace,
            **({"nodes_like": chosen.size.shape.key} if chosen.size is not None else {}),
            "gang": queueing.gang,
            **({"cluster": cluster} if cluster is not None else {}),
            **({"cluster_identifier": identifier} if identifier.startswith(CLUSTER_ID) else {}),
        }


# Where


def _cluster(
    fleet: Fleet,
    candidate: KubernetesCandidate,
    facts: ClusterFacts,
    previous: PriorState,
    context: Context,
) -> tuple[str | None, str]:
    """Which cluster the fleet is on, None in a rehearsal, and what the provider calls it.

    A stack keeps what its provider was made with: the official plugin makes all objects anew by another word.
    Raises PlanErrors (ORCH459) where the fleet is on another one than this.
    """
    decided = previous.pins or previous.unfinished
    pins = decided if decided.get("backend") == "kubernetes" else {}
    known, found = pins.get("cluster"), facts.identity
    if known is not None and found is not None and (detail := difference(known, found)) is not None:
        summary = f"fleet {fleet.name} is on another cluster than {_context_words(candidate)} leads to now"
        raise PlanErrors([Finding("ORCH459", "backends", summary, detail, OTHER_CLUSTER.format(fleet.name))])
    cluster = joined(known, found)
    named = context.login.get("context") or "current"
    if pins:
        return cluster, pins.get("cluster_identifier", named)
    return cluster, f"{CLUSTER_ID}{cluster}" if cluster is not None else named


def _context_words(candidate: KubernetesCandidate) -> str:
    return f"context {candidate.context}" if candidate.context is not None else "the current context"


def _namespace(facts: ClusterFacts, name: str, mark: str) -> tuple[bool, list[Finding]]:
    """Whether the fleet makes its namespace."""
    found = facts.namespace
    if found is None:
        return False, []
    if found.ending:
        summary = f"the namespace {name} is being deleted"
        hint = "wait until it is gone, or name another one: `namespace` of `kubernetes` in orch.yml"
        return False, [Finding("ORCH455", "backends", summary, hint=hint)]
    if found.exists:
        return found.mark == mark, []
    if "create namespaces" in facts.denied:
        summary = f"the cluster has no namespace {name}, and you may not make one"
        return True, [Finding("ORCH455", "backends", summary, hint="have it made, or name one that is there")]
    return True, []


def _security(facts: ClusterFacts, namespace: str, chosen: Chosen, *, made: bool) -> Iterator[Finding]:
    """What the pod security level of the namespace refuses. Source: Kubernetes, "Pod Security Standards";
    measured for IPC_LOCK."""
    level = facts.namespace.pod_security if facts.namespace is not None else None
    if made or level not in ("baseline", "restricted"):
        return
    if chosen.privileges:
        yield Finding(
            "ORCH452",
            "placement",
            f"the namespace {namespace} enforces the pod security level `{level}`, which refuses "
            f"{few(chosen.privileges)}: pods could not use {chosen.fabric}",
            hint=f"`kubectl label --overwrite namespace {namespace} {POD_SECURITY}=privileged`, another "
            "namespace, or `network: {interconnect: ethernet}` for jobs over plain TCP",
        )
    elif level == "restricted":
        yield Finding(
            "ORCH452",
            "backends",
            f"the namespace {namespace} enforces the pod security level `restricted`, which refuses pods "
            "whose jobs are started by root",
            hint=f"`kubectl label --overwrite namespace {namespace} {POD_SECURITY}=baseline`, or another "
            "namespace",
        )


def _account(
    facts: ClusterFacts, settings: KubernetesSettings, base: str
) -> tuple[str | None, list[Finding]]:
    """The service account of pods: the given one, one that is made, or the namespace's own."""
    given, known = settings.service_account, facts.service_accounts
    if given is not None:
        if known is not None and given not in known:
            summary = f"the namespace has no service account {given}"
            hint = hint_for(given, sorted(known)) or "`service_account` of `kubernetes` in orch.yml names it"
            return given, [Finding("ORCH455", "backends", summary, hint=hint)]
        return given, []
    if facts.may(*(f"{verb} serviceaccounts" for verb in MADE)):
        return base, []
    return None, []


def _rights(facts: ClusterFacts, queueing: Queueing, chosen: Chosen) -> Iterator[Finding]:
    """What runs need and the caller may not do."""
    acts = [" ".join(act) for act in OF_RUNS]
    acts += [" ".join(act) for act in OF_KUEUE_RUNS] if queueing.gang == "kueue" else []
    acts += [" ".join(act) for act in OF_POD_GROUPS] if queueing.gang == "podgroup" else []
    acts += [" ".join(act) for act in OF_COMPUTE_DOMAINS] if chosen.fabric == "compute-domain" else []
    needed = NEEDED_OF_RUNS | {" ".join(act) for act in (*OF_POD_GROUPS, *OF_COMPUTE_DOMAINS)}
    lacking = [each for each in acts if each in facts.denied]
    if vital := [each for each in lacking if each in needed]:
        summary = f"you may not {', '.join(vital)} in the namespace: no run could begin"
        yield Finding("ORCH453", "backends", summary, hint=GRANT)
    if others := [each for each in lacking if each not in needed]:
        summary = f"you may not {', '.join(others)} in the namespace: what needs it does not work"
        yield Finding("ORCH453", "backends", summary, hint=GRANT, severity=Severity.WARNING)


# How many


def _most(fleet: Fleet, chosen: Chosen) -> int:
    """The most pods of a run: what the file allows, else what the cluster has room for."""
    most = fleet.nodes.max if fleet.nodes is not None else 1
    if most is not None:
        return most
    return chosen.size.room if chosen.size is not None else 1


def _count_findings(fleet: Fleet, chosen: Chosen, pods: int) -> Iterator[Finding]:
    if chosen.size is None or pods <= chosen.size.room:
        return
    fits, each = len(chosen.size.fits), chosen.size.per_node
    holds = f", {each} pods each" if each > 1 else ""
    yield Finding(
        "ORCH454",
        "nodes",
        f"the cluster has {counted(fits, 'node')} for the fleet{holds}: a run of {pods} waits until there "
        "are more",
        hint="right where an autoscaler makes them; else ask for fewer",
        severity=Severity.WARNING,
    )


def _disk_findings(fleet: Fleet) -> Iterator[Finding]:
    if "disk_mib" in fleet.resources.model_fields_set:
        yield Finding(
            "ORCH236",
            "resources.disk",
            f"pods use the disk of their node: no node is chosen for its {disk_gb(fleet)} GB",
            hint="write `disk` in the `resources` of the task",
            severity=Severity.WARNING,
        )


def _tag_findings(tags: Mapping[str, str]) -> Iterator[Finding]:
    for key, value in tags.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield Finding(
                "ORCH236",
                "tags",
                f"`{key}: {value}` is no label of Kubernetes, as which tags are kept there",
                hint="at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends",
            )
