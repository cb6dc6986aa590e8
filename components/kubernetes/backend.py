"""The backend `kubernetes`: clusters that exist. A fleet is a queue there, whose runs bring their pods.

`account/` asks an API server, `planner.py` decides (pure; the nodes in `node_choice.py`, what starts pods
together in `queueing.py`), `plugin.py` serves resources to the engine where the official plugin cannot be
had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orch.components.accounts import Account
from orch.components.base import Backend
from orch.components.deployment import Deployment
from orch.components.explain import Explained, Traits
from orch.components.kubernetes.account.facts import ClusterFacts
from orch.components.kubernetes.account.gather_facts import gather_facts
from orch.components.kubernetes.candidates import KubernetesCandidate, candidates
from orch.components.kubernetes.cluster import cluster_account
from orch.components.kubernetes.explain import EXPLAINED, PACKAGE, PROVIDER, traits
from orch.components.kubernetes.login import kubeconfig_file, require_contexts
from orch.components.kubernetes.plan import KubernetesPlan
from orch.components.kubernetes.planner import Context, KubernetesPlanner
from orch.components.marks.marked import Survey
from orch.components.marks.orphans import StackSnapshot
from orch.components.request import CloudAnswer, PlanRequest, PriorState
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.namespace_limits import short_quotas, too_much
from orch.spec.diagnostics import Severity
from orch.spec.findings import Finding
from orch.spec.models import Fleet
from orch.spec.models.backends.base import BackendSettings
from orch.spec.models.backends.kubernetes import KubernetesSettings
from orch.spec.state import PodQueue

if TYPE_CHECKING:
    from orch.components.kubernetes.volumes import KubernetesVolumes


class KubernetesBackend(Backend[KubernetesCandidate, ClusterFacts, KubernetesPlan]):
    name: ClassVar[str] = "kubernetes"
    settings: ClassVar[type[BackendSettings]] = KubernetesSettings
    packages: ClassVar[tuple[str, ...]] = (f"{PACKAGE}:",)
    explained: ClassVar[Explained] = EXPLAINED
    accounts_per_stack: ClassVar[bool] = True

    def _login(self, request: PlanRequest, context: str | None) -> tuple[Path | None, str | None]:
        """The file of a kubeconfig and the context of it; in a rehearsal its own cluster."""
        rehearsed = request.once((self.name, "session"), lambda: request.session(self.name))
        if rehearsed is not None:
            return Path(rehearsed), None
        return kubeconfig_file(self.settings_of(request), request.root), context

    def _client(self, request: PlanRequest, context: str | None) -> KubernetesClient:
        def begin() -> KubernetesClient:
            file, name = self._login(request, context)
            return KubernetesClient.open(None if file is None else str(file), name)

        return request.once((self.name, "client", context), begin)

    def candidates(self, request: PlanRequest) -> Sequence[KubernetesCandidate]:
        settings = self.settings_of(request)
        found = candidates(request.fleet, settings, request.previous, other_backends=request.backends)
        if request.session(self.name) is None:
            require_contexts(settings, request.root, [each.context for each in found])
        return found

    def listed(self, fleet: Fleet, settings: KubernetesSettings) -> Sequence[KubernetesCandidate]:
        return candidates(fleet, settings, PriorState())

    def settle(
        self, request: PlanRequest, candidates: Sequence[KubernetesCandidate]
    ) -> Sequence[KubernetesCandidate]:
        """The first one with its context and namespace, where orch.yml names none: the current context by its
        name, so that the fleet's runs stay there when another one is current."""
        first, *others = candidates
        if first.context is None or not first.namespace:
            login = self._client(request, first.context).login
            namespace = first.namespace or login.namespace or "default"
            first = replace(first, context=login.context, namespace=namespace)
        return (first, *others)

    def facts(self, request: PlanRequest, candidate: KubernetesCandidate) -> ClusterFacts:
        client = self._client(request, candidate.context)
        facts = request.once(
            (self.name, "facts", candidate.context, candidate.namespace),
            lambda: gather_facts(client, candidate.namespace),
        )
        # The control plane of a rehearsal is made anew whenever it was stopped.
        return facts if request.session(self.name) is None else replace(facts, identity=None)

    def plan(
        self, request: PlanRequest, candidate: KubernetesCandidate, facts: ClusterFacts
    ) -> KubernetesPlan:
        settings = self.settings_of(request)
        file, name = self._login(request, candidate.context)
        login = {
            **({"kubeconfig": str(file)} if file is not None else {}),
            **({"context": name} if name is not None else {}),
        }
        context = Context(
            scope=request.scope,
            settings=settings,
            kubeconfig=None if file is None else _within(file, request.root),
            login=login,
            tags=request.tags,
        )
        made = KubernetesPlanner(request.fleet, candidate, facts, request.previous, context).plan()
        return replace(made, warnings=(*made.warnings, *limit_findings(made.queue, facts)))

    def deploy(
        self, request: PlanRequest, candidate: KubernetesCandidate, plan: KubernetesPlan
    ) -> Deployment:
        account = None
        if plan.queue.cluster is not None:
            file, _ = self._login(request, candidate.context)
            login = self._client(request, candidate.context).login
            account = cluster_account(login, file, plan.queue.cluster)
        return replace(
            super().deploy(request, candidate, plan),
            account=account,
            findings=(*plan.warnings, *jump_note(self.settings_of(request))),
            unpriced=() if plan.queue.price_hourly is not None else ("its runs' pods",),
        )

    def new_node(self, plan: KubernetesPlan) -> Mapping[str, Any]:
        queue = plan.queue
        return {
            "cpus": queue.cpus,
            "memory_mib": queue.memory_mib,
            "gpus": queue.gpus.model_dump(),
            "region": queue.context,
            "runtime": "process",
        }

    def volumes(self) -> KubernetesVolumes:
        from orch.components.kubernetes.volumes import KubernetesVolumes

        return KubernetesVolumes()

    def traits(self, request: PlanRequest, candidate: KubernetesCandidate, plan: KubernetesPlan) -> Traits:
        return traits(plan)

    def recorded_account(self, snapshot: StackSnapshot, root: Path) -> Account | None:
        """Return the cluster that the stack's provider leads to; None in a rehearsal, whose control plane is
        created again whenever it was stopped."""
        provider = next(snapshot.of(PROVIDER), None)
        if provider is None or snapshot.session(self.name) is not None:
            return None
        file, context = provider.inputs.get("kubeconfig"), provider.inputs.get("context")
        if file and not Path(file).exists():  # another clone of the project recorded it
            file = kubeconfig_file(self.entry(snapshot.settings), root)
        client = KubernetesClient.open(str(file) if file else None, context)
        try:
            return cluster_account(client.login, file, client.identity())
        finally:
            client.close()

    def delete_orphans(self, snapshot: StackSnapshot) -> Iterable[str]:
        from orch.components.kubernetes.objects.orphans import delete_unrecorded

        settings = self.entry(snapshot.settings)
        return delete_unrecorded(snapshot, kubeconfig_file(settings, Path.cwd()), settings.namespace)

    def survey(self, project: str, state: StackSnapshot) -> Survey:
        from orch.components.kubernetes.objects.orphans import survey

        settings = self.entry(state.settings)
        contexts = [each.name for each in settings.contexts]
        file = kubeconfig_file(settings, Path.cwd())
        return survey(project, state, file, contexts, settings.namespace)

    def classify_error(self, text: str) -> CloudAnswer | None:
        """An object that one cluster refuses may be taken by another one; but which cluster is meant is for
        the file to say."""
        return None


def _within(file: Path, root: Path) -> str:
    """The path as every clone of the project has it, where the file is one of the project."""
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def limit_findings(queue: PodQueue, facts: ClusterFacts) -> tuple[Finding, ...]:
    """Warnings for what the namespace lets no pod, or not so many of them, have. A task may ask for less."""
    told = [*too_much(facts.limit_ranges or (), queue.requests)]
    told += short_quotas(facts.quotas or (), queue.requests, queue.pods)
    hint = "ask for less, take another namespace, or have it raised"
    return tuple(Finding("ORCH454", "resources", each, hint=hint, severity=Severity.WARNING) for each in told)


def jump_note(settings: KubernetesSettings) -> tuple[Finding, ...]:
    """A note where orch.yml names a way by SSH."""
    jumps = [each for each in (settings.proxy_jump, *(each.proxy_jump for each in settings.contexts)) if each]
    if not jumps:
        return ()
    named = [f"{each.hostname or 'any node'}, port {each.port or 'not given'}" for each in jumps]
    summary = "`proxy_jump` of `kubernetes` in orch.yml is read, and nothing needs it"
    detail = f"pods are reached through the API server, not by {'; '.join(named)}"
    return (Finding("ORCH456", "backends", summary, detail, severity=Severity.NOTE),)
