"""Settings of the backend `kubernetes`: A Kubernetes cluster, or several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orch.spec.grammar.values import Problem, shown
from orch.spec.models.backends.base import BackendSettings, Regions
from orch.spec.models.backends.credentials import Kubeconfig
from orch.spec.models.fields import json_schema
from orch.spec.models.fields.base import Section
from orch.spec.models.fields.json_schema import Form
from orch.spec.models.fields.parsing import Reaches
from orch.spec.models.fields.types import Names, Tags, Text, checked, choice, duration, names_of, rows
from orch.spec.models.ssh import PortNumber

START_LIMIT_S = 300
_NO_HOST = "a pod has no machine of yours under it: put it into the job's image, or its `commands`"
_LABELS = "nodes are chosen by `resources`, and by `node_selector` of `kubernetes` in orch.yml"
_NO_NETWORK = "pods are in the network of their cluster"
LONGEST_LABEL, LONGEST_SUBDOMAIN = 63, 253
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"


def check_pod_network(text: str) -> str:
    """The name of a NetworkAttachmentDefinition, its namespace before it where it is another one's.

    Source: Multus CNI, pkg/k8sclient parsePodNetworkObjectName: labels of DNS, without dots.
    """
    if re.fullmatch(rf"(?:{_LABEL}/)?{_LABEL}", text):
        return text
    hint = "lower-case letters, digits and dashes, as `hostdev-net`, or `default/hostdev-net`"
    raise Problem("ORCH115", f"{shown(text)} is not the name of a pod's network", hint=hint)


def check_label(text: str) -> str:
    """The name of a namespace: a label of RFC 1123. Source: Kubernetes, "Object Names and IDs"."""
    if re.fullmatch(_LABEL, text):
        return text
    raise _no_name(text, LONGEST_LABEL, r"[^a-z0-9]+", _LABEL)


def check_subdomain(text: str) -> str:
    """The name of most objects: a subdomain of RFC 1123. Source: Kubernetes, "Object Names and IDs"."""
    if len(text) <= LONGEST_SUBDOMAIN and re.fullmatch(_SUBDOMAIN, text):
        return text
    raise _no_name(text, LONGEST_SUBDOMAIN, r"[^a-z0-9.]+", _SUBDOMAIN)


def _no_name(text: str, longest: int, others: str, form: str) -> Problem:
    signs = "digits and dashes" if longest == LONGEST_LABEL else "digits, dashes and dots"
    reason = f"at most {longest} lower-case letters, {signs}, with a letter or digit at both ends"
    close = re.sub(others, "-", text.lower()).strip("-.")
    fits = len(close) <= longest and re.fullmatch(form, close) is not None
    hint = f"is it `{close}`? A name has {reason}" if fits else f"a name has {reason}"
    return Problem("ORCH115", f"{shown(text)} is not the name of an object of Kubernetes", hint=hint)


Label = Annotated[str, checked(check_label, json_schema.pattern("label", _LABEL))]
Subdomain = Annotated[str, checked(check_subdomain, json_schema.pattern("subdomain", _SUBDOMAIN))]


class KubernetesJump(Section):
    """A node that callers reach by SSH, on the way to pods."""

    noun: ClassVar[str] = "`proxy_jump`"

    hostname: Text | None = Field(default=None, description="Its name or address.")
    port: PortNumber | None = Field(default=None, description="Its port.")


class KubeContext(Section):
    """A context of the kubeconfig; it counts as a region."""

    noun: ClassVar[str] = "a context"
    short: ClassVar[tuple[Form, ...]] = (json_schema.TEXT,)

    name: Text = Field(description="Its name.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to its pods.")

    @classmethod
    def expand(cls, data: object) -> object:
        return {"name": data} if isinstance(data, str) else data


class KubernetesToleration(Section):
    """A taint that nodes may have, as in a pod's `tolerations`."""

    noun: ClassVar[str] = "a toleration"

    key: Text | None = Field(default=None, description="Key of the taint; any if not given.")
    operator: Annotated[Literal["Equal", "Exists"], choice("Equal", "Exists")] = Field(
        default="Equal", description="`Exists`: whatever its value."
    )
    value: Text | None = Field(default=None, description="Its value.")
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
    ] = Field(default=None, description="Its effect; any if not given.")


class KubernetesSettings(BackendSettings):
    """A Kubernetes cluster, or several.

    A fleet has no nodes of its own there: each run brings its pods, which the cluster's own queue starts."""

    noun: ClassVar[str] = "the backend `kubernetes`"
    title: ClassVar[str] = "Kubernetes"
    provisioned: ClassVar[bool] = True
    made_with_runs: ClassVar[bool] = True
    queues_pods: ClassVar[bool] = True
    supports: ClassVar[frozenset[str]] = frozenset(
        {"regions", "region", "instance_types", "tags", "network", "gang", "volumes"}
    )
    volumes_lack: ClassVar[tuple[str, ...]] = (
        *("availability_zone", "disk_type", "iops", "throughput", "kms_key"),
    )
    volumes_shared: ClassVar[bool] = True
    instead: ClassVar[Mapping[str, str]] = {
        "availability_zones": _LABELS,
        "zones": _LABELS,
        "zone": _LABELS,
        "spot_policy": _LABELS,
        "max_price": "orch buys nothing on a cluster that is there",
        "reservation": "what is reserved there is for its queues to say: `queue` of `kubernetes` in orch.yml",
        "os_image": "the job's `image` is all there is",
        "init": _NO_HOST,
        "mounts": _NO_HOST,
        "scratch": "a pod has its own disk",
        "scratch.fs": "a pod has its own disk",
        "topology": "Kueue orders pods where it knows the topology of the nodes",
        "ttl": "pods go with their run; `max_duration` of the task ends that",
        "budget": "orch buys nothing on a cluster that is there",
        "network.name": _NO_NETWORK,
        "network.fabric": "`rdma_resource` of `kubernetes` in orch.yml names the resource of nodes",
        "network.extra_vpcs": _NO_NETWORK,
        "network.roce_vpcs": _NO_NETWORK,
    }
    spellings: ClassVar[dict[str, str]] = {"region": "regions"}
    listed_spellings: ClassVar[frozenset[str]] = frozenset({"region"})

    type: Annotated[Literal["kubernetes"], choice("kubernetes")] = Field(
        default="kubernetes", description="`kubernetes`."
    )
    kubeconfig: Annotated[Kubeconfig | None, Reaches()] = Field(
        default=None, description="Your own if not given."
    )
    contexts: Annotated[tuple[KubeContext, ...], rows("contexts")] = Field(
        default=(), description="Contexts to use; the current one if not given."
    )
    regions: Regions = Field(default=(), description="Names of contexts.")
    proxy_jump: KubernetesJump | None = Field(default=None, description="Way to pods.")
    namespace: Label | None = Field(
        default=None, description="Namespace; that of the context if not given, else `default`."
    )
    rdma_resource: Text | None = Field(
        default=None, description="Resource of nodes that is their fabric, as `rdma/ib`; found if not given."
    )
    rdma_networks: Annotated[tuple[str, ...], names_of("networks", check_pod_network)] = Field(
        default=(),
        description="NetworkAttachmentDefinitions that pods join for their fabric, as `NAME` or "
        "`NAMESPACE/NAME`: one for all of its devices, or one for each; found if not given.",
    )
    gang: Annotated[
        Literal["auto", "kueue", "podgroup", "none"], choice("auto", "kueue", "podgroup", "none")
    ] = Field(
        default="auto",
        description="What starts all pods of a run together; `auto`: the first that the cluster has; `none`: "
        "orch takes them back together.",
    )
    queue: Subdomain | None = Field(
        default=None,
        description="An existing LocalQueue of Kueue in the namespace; nothing cluster-wide is made then.",
    )
    start_limit_s: Annotated[int, duration(START_LIMIT_S, never=False, low=1)] = Field(
        default=START_LIMIT_S,
        validation_alias="start_limit",
        description="How long some pods of a run may hold nodes while others do not start, without a gang.",
    )
    service_account: Subdomain | None = Field(
        default=None, description="An existing one for pods; one without rights is made if not given."
    )
    node_selector: Tags = Field(default={}, description="Labels that nodes must have.")
    tolerations: Annotated[tuple[KubernetesToleration, ...], rows("tolerations")] = Field(
        default=(), description="Taints that nodes may have, beside those of their accelerators."
    )
    topology_labels: Names = Field(
        default=(),
        description="Labels of nodes that tell where they stand, the widest first; known ones if not given.",
    )
