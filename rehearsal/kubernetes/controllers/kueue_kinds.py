"""The kinds of Kueue's objects (kueue.x-k8s.io/v1beta2) as its API documents them, and its names."""

from __future__ import annotations

from orch.rehearsal.kubernetes.api import Doc
from orch.rehearsal.kubernetes.controllers.schemas import (
    AMOUNT,
    ANY,
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    definition,
    fields,
    list_of,
    one_of,
)

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
API = f"/apis/{GROUP}/{VERSION}"


def _kind(kind: str, plural: str, spec: Doc, *, namespaced: bool = False, **more: Doc) -> Doc:
    schema = fields(apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec, status=ANY, **more)
    return definition(GROUP, VERSION, kind, plural, schema, namespaced=namespaced)


_STOP = one_of("None", "Hold", "HoldAndDrain")
KINDS = [
    _kind(
        "ResourceFlavor",
        "resourceflavors",
        fields(nodeLabels=TEXTS, nodeTaints=list_of(ANY), tolerations=list_of(ANY), topologyName=TEXT),
    ),
    _kind("Topology", "topologies", fields(levels=list_of(fields(nodeLabel=TEXT)))),
    _kind(
        "ClusterQueue",
        "clusterqueues",
        fields(
            resourceGroups=list_of(
                fields(
                    coveredResources=list_of(TEXT),
                    flavors=list_of(
                        fields(
                            name=TEXT,
                            resources=list_of(
                                fields(
                                    name=TEXT,
                                    nominalQuota=AMOUNT,
                                    borrowingLimit=AMOUNT,
                                    lendingLimit=AMOUNT,
                                )
                            ),
                        )
                    ),
                )
            ),
            cohortName=TEXT,
            queueingStrategy=one_of("StrictFIFO", "BestEffortFIFO"),
            namespaceSelector=ANY,
            preemption=fields(
                reclaimWithinCohort=TEXT,
                withinClusterQueue=one_of("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
            ),
            stopPolicy=_STOP,
        ),
    ),
    _kind("LocalQueue", "localqueues", fields(clusterQueue=TEXT, stopPolicy=_STOP), namespaced=True),
    _kind(
        "Workload",
        "workloads",
        fields(
            active=FLAG,
            podSets=list_of(ANY),
            priority=NUMBER,
            priorityClassRef=ANY,
            queueName=TEXT,
            maximumExecutionTimeSeconds=NUMBER,
        ),
        namespaced=True,
    ),
    _kind("WorkloadPriorityClass", "workloadpriorityclasses", ANY, value=NUMBER, description=TEXT),
]
