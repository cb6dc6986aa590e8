"""What pods of a gang need to use the interconnect of their cluster: rows of catalog/kubernetes_pods.yml."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, cast

import yaml

from orch.catalog.errors import BadCatalogFile
from orch.catalog.fabrics import fabric as host_fabric
from orch.catalog.load import SHIPPED
from orch.runner.kubernetes.gangs.names import INSTANCE_TYPE
from orch.spec.grammar.quantities import amount
from orch.spec.state import PodQueue

Doc = dict[str, Any]

GKE_NETWORK = "networking.gke.io.networks/"
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class FabricPod:
    """What one pod has because of its interconnect, in Kubernetes' words.

    `volumes`, `mounts` and `sidecars` are as in a pod's spec. `resources`: patterns of the keys that it asks
    for, `keyed`: without one of them it has no device; `divided`: a pod that has a part of a node asks for a
    part of them. `compute_domain`: it has a channel of the gang's ComputeDomain.
    """

    title: str
    env: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    capabilities: tuple[str, ...] = ()
    volumes: tuple[Doc, ...] = ()
    mounts: tuple[Doc, ...] = ()
    sidecars: tuple[Doc, ...] = ()
    resources: tuple[str, ...] = ()
    keyed: bool = False
    divided: bool = False
    compute_domain: bool = False

    def asks(self, key: str) -> bool:
        """Whether a pod asks for this key because of the fabric."""
        return any(fnmatchcase(key, pattern) for pattern in self.resources)


def fabric_pod(
    name: str,
    *,
    resource: str | None = None,
    requests: Mapping[str, str] | None = None,
    instance_type: str | None = None,
) -> FabricPod:
    """The row `name` for the nodes of a queue.

    `resource`: the fabric's key that is allocatable there, `requests`: what a pod that has a whole node asks
    for. Raises BadCatalogFile for a name that no row has.
    """
    row = _rows().get(name)
    if row is None:
        raise BadCatalogFile(
            f"{SHIPPED / 'kubernetes_pods.yml'} has no pods for the fabric {name!r}",
            hint="its ids are those of kubernetes_fabrics.yml",
        )
    asked = requests or {}
    under = _under(row, resource, asked, instance_type)
    base = host_fabric(row["fabric"], instance_type) if "fabric" in row else None
    env: dict[str, str] = {**(under.env if under else {}), **(base.env if base else {}), **row.get("env", {})}
    capabilities = dict.fromkeys(
        [*(under.capabilities if under else ()), *(base.capabilities if base else ()), "IPC_LOCK"]
    )
    volumes = [*(under.volumes if under else ()), *row.get("volumes", ())]
    mounts = [*(under.mounts if under else ()), *row.get("mounts", ())]
    if base is not None and "mounts" in row.get("take", ()):
        for at, text in enumerate(base.mounts):
            source, _, target = text.partition(":")
            volumes.append({"name": f"fabric-{at}", "hostPath": {"path": source}})
            mounts.append({"name": f"fabric-{at}", "mountPath": target})
    return FabricPod(
        title=str(row["title"]),
        env=env,
        annotations={
            **(under.annotations if under else {}),
            **_interfaces(row.get("interfaces"), asked),
            **_devices(row.get("devices", {})),
        },
        capabilities=tuple(capabilities),
        volumes=tuple(copy.deepcopy(volumes)),
        mounts=tuple(copy.deepcopy(mounts)),
        sidecars=(*(under.sidecars if under else ()), *map(_sidecar, row.get("sidecars", ()))),
        resources=(*(under.resources if under else ()), *row.get("resources", ())),
        # GKE gives a pod its networks by annotations, and asks for their keys itself.
        keyed=bool(row.get("resources")) and "interfaces" not in row,
        divided=bool(row.get("divided", under.divided if under else False)),
        compute_domain=bool(row.get("compute_domain", False)),
    )


def queue_fabric(queue: PodQueue) -> FabricPod | None:
    """The row of a queue's fabric; None where its nodes have none."""
    if queue.fabric is None:
        return None
    return fabric_pod(
        queue.fabric,
        resource=queue.fabric_resource,
        requests=queue.requests,
        instance_type=queue.node_selector.get(INSTANCE_TYPE),
    )


def fabric_variables(queue: PodQueue) -> dict[str, str]:
    """What jobs need in their environment to use the interconnect of a queue's nodes: that of the pods.

    It takes the place of what fabrics.yml says for machines, whose interfaces are called otherwise.
    """
    fabric = queue_fabric(queue)
    return dict(fabric.env) if fabric is not None else {}


def network_annotations(queue: PodQueue, asked: Mapping[str, str]) -> dict[str, str]:
    """The networks that a pod joins which asks for so much: of those of a whole pod the same part, in their
    order.

    Source: Multus CNI, docs/how-to-use.md: a name is said as often as it is to be joined, and each time takes
    another device.
    """
    names = queue.networks
    if not names:
        return {}
    key = queue.fabric_resource or ""
    has, whole = int(amount(asked.get(key))), int(amount(queue.requests.get(key)))
    if has < whole:
        names = names[: max(len(names) * has // whole, 1)]
    return {"k8s.v1.cni.cncf.io/networks": ", ".join(names)}


def _under(
    row: Mapping[str, Any],
    resource: str | None,
    asked: Mapping[str, str],
    instance_type: str | None,
) -> FabricPod | None:
    """The fabric between NVLink domains, by the key that the nodes have beside them."""
    for pattern, name in row.get("between", {}).items():
        if resource is not None and fnmatchcase(resource, pattern):
            return fabric_pod(name, resource=resource, requests=asked, instance_type=instance_type)
    return None


def _interfaces(row: Mapping[str, Any] | None, asked: Mapping[str, str]) -> dict[str, str]:
    """The annotations by which a pod of GKE joins the node's networks."""
    if row is None:
        return {}
    found = [
        key.removeprefix(GKE_NETWORK)
        for key in asked
        if key.startswith(GKE_NETWORK) and not key.endswith(".IP")
    ]
    names = sorted(found, key=_natural) or [
        str(row["network"]).format(row["from"] + at) for at in range(row["count"])
    ]
    interfaces = [("eth0", "default"), *((f"eth{row['first'] + at}", name) for at, name in enumerate(names))]
    documents = [{"interfaceName": each, "network": network} for each, network in interfaces]
    return {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(documents),
    }


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name)]


def _devices(rows: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {
        f"devices.gke.io/container.{container}": "".join(f"- path: {path}\n" for path in paths)
        for container, paths in rows.items()
    }


def _sidecar(row: Mapping[str, Any]) -> Doc:
    """As a container that begins before the others, and does not keep the pod from its end."""
    return {**copy.deepcopy(dict(row)), "restartPolicy": "Always"}


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    file = SHIPPED / "kubernetes_pods.yml"
    try:
        document = cast("dict[str, Any]", yaml.safe_load(file.read_text("utf-8")))
        return cast("Mapping[str, Mapping[str, Any]]", document["pods"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise BadCatalogFile(f"{file} does not read", detail=str(error)) from error
