"""Where a fleet may go: the contexts of a kubeconfig, each a cluster. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orch.components.cloud.restrictions import YES, Restriction, rejected
from orch.components.request import PriorState
from orch.spec.findings import Finding, PlanErrors
from orch.spec.models import Fleet
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.suggest import few, hint_for

_IN_CLUSTER = "pods are in the network of their cluster"
_NO_SSH = "nobody reaches pods by SSH: orch goes through the API server"
_BY_API = "pods are reached through the API server"
RESTRICTIONS = (
    Restriction("authorized_keys", "nobody logs in to pods by SSH"),
    Restriction("network.vpc", _IN_CLUSTER),
    Restriction("network.subnets", _IN_CLUSTER),
    Restriction("network.security_groups", _IN_CLUSTER),
    Restriction("network.ssh_cidrs", _NO_SSH),
    Restriction("network.proxy_jump", _NO_SSH),
    Restriction("network.bastion", _BY_API, when=YES),
    Restriction("network.public_ips", _BY_API, when=YES),
)


@dataclass(frozen=True)
class KubernetesCandidate:
    """A cluster. `context`: of the kubeconfig, None for its current one. It costs nothing that orch buys."""

    context: str | None
    namespace: str
    kept: bool = False
    backend: str = "kubernetes"
    price: float | None = 0.0

    @property
    def region(self) -> str | None:
        return self.context

    @property
    def words(self) -> str:
        where = f"context {self.context}" if self.context is not None else "the current context"
        return f"namespace {self.namespace} of {where}"


def candidates(
    fleet: Fleet,
    settings: KubernetesSettings,
    previous: PriorState,
    *,
    other_backends: Collection[str] = (),
) -> tuple[KubernetesCandidate, ...]:
    """The contexts in the order of orch.yml; the one where the fleet is alone, as long as its file allows it.

    The namespace of a context that orch.yml names none for is known when it is asked (`in_namespace`).
    Raises PlanErrors: ORCH205, 236.
    """
    if wrong := list(_refusals(fleet, settings, other_backends)):
        raise PlanErrors(wrong)
    namespace = settings.namespace or ""
    pinned = previous.pins.get("context") if previous.pins.get("backend") == "kubernetes" else None
    known = contexts(settings)
    allowed = [each for each in known if not fleet.regions or each in fleet.regions]
    # Where orch.yml names none: the one that was current when the fleet was made.
    if pinned is not None and ((pinned or None) in allowed or known == (None,)):
        where = namespace or previous.pins.get("namespace", "")
        return (KubernetesCandidate(pinned or None, where, kept=True),)
    return tuple(KubernetesCandidate(each, namespace) for each in allowed)


def contexts(settings: KubernetesSettings) -> tuple[str | None, ...]:
    """Those of orch.yml; the current one, None, where it names none."""
    names = [*(each.name for each in settings.contexts), *settings.regions]
    return tuple(dict.fromkeys(names)) or (None,)


def _refusals(fleet: Fleet, settings: KubernetesSettings, backends: Collection[str]) -> Iterator[Finding]:
    """What the file may not say: the fleet is a queue, and its nodes are pods."""
    if others := [name for name in backends if name != "kubernetes"]:
        yield _cannot(
            "backends",
            f"nodes on Kubernetes are the pods of a run, not on {few(others)} too",
            "give Kubernetes a fleet of its own: `backends: [kubernetes]`",
        )
    known = [each for each in contexts(settings) if each is not None]
    for index, name in enumerate(fleet.regions):
        if name not in known:
            yield Finding(
                "ORCH205",
                f"regions[{index}]",
                f"orch.yml names no context '{name}': regions of Kubernetes are contexts",
                hint=hint_for(name, known) or "list it in `contexts` of `kubernetes` in orch.yml",
            )
    if fleet.blocks != 1:
        yield _cannot(
            "blocks",
            "a pod is the container of one job: it is not cut into blocks",
            "remove it, and ask for fewer accelerators: pods share nodes",
        )
    if fleet.gang == "best-effort" and "gang" in fleet.model_fields_set:
        yield _cannot("gang", "a run begins with all of its pods, or with none", "remove it")
    yield from rejected(fleet, RESTRICTIONS, "ORCH236")
    required = fleet.network is not None and fleet.network.interconnect == "required"
    if required and fleet.placement != "cluster":
        summary = "a fast interconnect is required, and single pods have none"
        yield Finding("ORCH223", "network.interconnect", summary, hint="write `placement: cluster`")


def _cannot(path: str, summary: str, hint: str) -> Finding:
    return Finding("ORCH236", path, summary, hint=hint)
