"""A Kubernetes fleet as Pulumi resources: the plan's objects, one to one. Decides nothing.

A run's own objects are none of these: a job that ends would be drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pulumi
import pulumi_kubernetes as kubernetes

from orch.components.kubernetes.plan import STACK, KubernetesPlan
from orch.spec.state import SCHEMA

if TYPE_CHECKING:
    from orch.components.kubernetes.backend import KubernetesBackend
    from orch.components.request import PlanRequest

ANNOTATIONS = {
    # What somebody else changed in these objects is put back: they are the fleet's own.
    "pulumi.com/patchForce": "true",
    # A queue is usable before its controller says so; whether it is active is told by plans.
    "pulumi.com/skipAwait": "true",
}
"""For the official plugin. Source: pulumi-kubernetes, provider/pkg/metadata/annotations.go."""


class KubernetesFleet(pulumi.ComponentResource):
    """The whole fleet. `state` is its FleetState."""

    state: pulumi.Output[dict[str, Any]]

    def __init__(self, plan: KubernetesPlan) -> None:
        protect = pulumi.ResourceOptions(protect=plan.protect)
        super().__init__("orch:fleet:Kubernetes", plan.fleet, None, protect)
        self._plan = plan
        own = pulumi.ResourceOptions(parent=self)
        provider = kubernetes.Provider(
            f"{plan.fleet}-kubernetes",
            cluster_identifier=plan.cluster_identifier,
            enable_server_side_apply=True,
            kubeconfig=plan.login.get("kubeconfig"),
            context=plan.login.get("context"),
            opts=own,
        )
        self._opts = pulumi.ResourceOptions(parent=self, provider=provider)
        made = list[pulumi.Resource]()
        for document in plan.objects:
            # Each stands on those before it: a queue on its flavor, all on their namespace.
            made.append(self._make(document, made[-1:]))
        self.state = self._state(made)
        # Recorded at once, unlike the stack's outputs: an interrupted `up` still records where it was.
        self.register_outputs({"pins": dict(plan.pins)})

    def _make(self, document: dict[str, Any], after: Sequence[pulumi.Resource]) -> pulumi.Resource:
        kind, api = document["kind"], document["apiVersion"]
        name = f"{self._plan.fleet}-{kind.lower()}"
        metadata: Any = {**document["metadata"], "annotations": ANNOTATIONS}
        opts = pulumi.ResourceOptions.merge(self._opts, pulumi.ResourceOptions(depends_on=list(after)))
        if kind == "Namespace":
            whose = f"{pulumi.get_project()}/{pulumi.get_stack()}/{self._plan.scope}"
            metadata["annotations"] = {**ANNOTATIONS, STACK: whose}
            return kubernetes.core.v1.Namespace(name, metadata=metadata, opts=opts)
        if kind == "ServiceAccount":
            token = document["automountServiceAccountToken"]
            return kubernetes.core.v1.ServiceAccount(
                name, metadata=metadata, automount_service_account_token=token, opts=opts
            )
        return kubernetes.apiextensions.CustomResource(
            name, api_version=api, kind=kind, metadata=metadata, spec=document["spec"], opts=opts
        )

    def _state(self, made: Sequence[pulumi.Resource]) -> pulumi.Output[dict[str, Any]]:
        plan = self._plan
        state = {
            "schema_version": SCHEMA,
            "name": plan.fleet,
            "stack": pulumi.get_stack(),
            "backend": "kubernetes",
            "placement": plan.placement,
            "interconnect": plan.interconnect,
            "image": plan.job_image,
            "env": dict(plan.env),
            "queue": plan.queue.model_dump(mode="json"),
            "nodes": [],
        }
        # The fleet is there when all of it is.
        return pulumi.Output.all(*(each.urn for each in made)).apply(lambda _: state)


def register(
    backend: KubernetesBackend, request: PlanRequest, plan: KubernetesPlan
) -> tuple[pulumi.Output[dict[str, Any]], pulumi.Output[str] | None]:
    """See `Backend.register`."""
    return KubernetesFleet(plan).state, None
