"""What a pod's containers are for Docker: environment, mounts, limits. Nothing here starts one."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orch.rehearsal.kubernetes.api import Doc

_SUFFIX = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")

Lookup = Callable[[str, str], Doc | None]
"""A document of the pod's namespace, by plural and name (`secrets`, `registry`); None where there is none."""


class CannotStart(Exception):
    """A container that does not start as its pod is written. `reason`: what a kubelet calls it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def quantity(text: object) -> float:
    """A number from Kubernetes' way of writing one: `500m`, `64Gi`."""
    match = re.fullmatch(r"([0-9.eE+-]+?)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _SUFFIX:
        raise ValueError(f"{text!r} is no quantity")
    return float(match[1]) * _SUFFIX[match[2]]


def environment(pod: Doc, container: Doc, lookup: Lookup, ip: str) -> dict[str, str]:
    """The variables of a container, those before it expanded in each. Raises CannotStart."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        plural, reference = (
            ("secrets", source["secretRef"])
            if "secretRef" in source
            else ("configmaps", source["configMapRef"])
        )
        document = _document(plural, reference, lookup)
        values |= {source.get("prefix", "") + key: text for key, text in _texts(plural, document).items()}
    for row in container.get("env", ()):
        text = (
            expanded(str(row.get("value", "")), values)
            if "valueFrom" not in row
            else _from(row["valueFrom"], pod, container, lookup, ip)
        )
        if text is not None:
            values[row["name"]] = text
    return values


def expanded(text: str, values: Mapping[str, str]) -> str:
    """`$(NAME)` in a command, an argument or a variable; `$$` is one dollar sign."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else values.get(m[1], m[0]), text)


def _from(source: Doc, pod: Doc, container: Doc, lookup: Lookup, ip: str) -> str | None:
    if "fieldRef" in source:
        return field_of(pod, source["fieldRef"]["fieldPath"], ip)
    if "resourceFieldRef" in source:
        kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
        amount = quantity(container.get("resources", {}).get(kind, {}).get(name, "0"))
        return str(int(amount / quantity(source["resourceFieldRef"].get("divisor") or "1")))
    plural, reference = (
        ("secrets", source["secretKeyRef"])
        if "secretKeyRef" in source
        else ("configmaps", source["configMapKeyRef"])
    )
    text = _texts(plural, _document(plural, reference, lookup)).get(reference["key"])
    if text is None and not reference.get("optional"):
        raise CannotStart(
            "CreateContainerConfigError",
            f"couldn't find key {reference['key']} in {plural} {reference['name']}",
        )
    return text


def field_of(pod: Doc, path: str, ip: str) -> str:
    """A field of the pod by its path, as `fieldRef` names it. Raises CannotStart."""
    named = re.fullmatch(r"metadata\.(annotations|labels)\['([^']+)'\]", path)
    if named:
        return str(pod["metadata"].get(named[1], {}).get(named[2], ""))
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": ip,
        "status.podIPs": ip,
        "status.hostIP": "127.0.0.1",
    }
    if path not in fields:
        raise CannotStart("CreateContainerConfigError", f"no field {path}")
    return str(fields[path])


def _document(plural: str, reference: Doc, lookup: Lookup) -> Doc:
    document = lookup(plural, reference["name"])
    if document is None and not reference.get("optional"):
        raise CannotStart("CreateContainerConfigError", f'{plural[:-1]} "{reference["name"]}" not found')
    return document or {}


def _texts(plural: str, document: Doc) -> dict[str, str]:
    return {
        key: content.decode("utf-8", "surrogateescape") for key, content in contents(plural, document).items()
    }


def contents(plural: str, document: Doc) -> dict[str, bytes]:
    """The data of a secret or a config map by key."""
    if plural == "secrets":
        return {key: b64decode(text) for key, text in document.get("data", {}).items()}
    return {key: str(text).encode() for key, text in document.get("data", {}).items()} | {
        key: b64decode(text) for key, text in document.get("binaryData", {}).items()
    }


def mounts(container: Doc, volumes: Mapping[str, Mapping[str, Any]]) -> list[Doc]:
    """Docker's mounts of a container. `volumes`: Docker's source of each volume of the pod.

    Raises CannotStart.
    """
    rows: list[Doc] = []
    for mount in container.get("volumeMounts", ()):
        source = volumes.get(mount["name"])
        if source is None:
            raise CannotStart("CreateContainerConfigError", f"no volume {mount['name']}")
        sub = mount.get("subPath", "")
        if sub and source["Type"] != "bind":
            raise CannotStart("CreateContainerConfigError", "subPath of a volume in memory")
        path = str(Path(source["Source"]) / sub) if sub else source["Source"]
        rows.append(
            {
                "Type": source["Type"],
                "Source": path,
                "Target": mount["mountPath"],
                "ReadOnly": bool(mount.get("readOnly") or source.get("ReadOnly")),
            }
        )
    return rows


def limits(container: Doc) -> Doc:
    """Docker's limits of CPU and memory. A node may have more CPUs than this machine: Docker gives no
    more than there are."""
    found = container.get("resources", {}).get("limits", {})
    host: Doc = {}
    if "memory" in found:
        host["Memory"] = host["MemorySwap"] = int(quantity(found["memory"]))
    if "cpu" in found:
        most = (os.cpu_count() or 1) * 10**9
        host["NanoCpus"] = min(max(int(quantity(found["cpu"]) * 1e9), 10_000_000), most)
    return host
