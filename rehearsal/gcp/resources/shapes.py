"""What instances and templates have in common: the API's words as properties, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.rehearsal.gcp.resources.kinds import Props, body_fields, last, output_fields
from orch.rehearsal.store import Doc

_SCHEDULING = (
    "automaticRestart",
    "onHostMaintenance",
    "preemptible",
    "provisioningModel",
    "instanceTerminationAction",
    "minNodeCpus",
    "availabilityDomain",
    "terminationTime",
)
_NIC = ("network", "subnetwork", "nicType", "stackType", "queueCount", "aliasIpRanges", "networkAttachment")


def machine(inputs: Props) -> Doc:
    """What of a request is the same for an instance and for a template's properties."""
    body = body_fields(inputs, "canIpForward", "minCpuPlatform", "keyRevocationActionType")
    if inputs.get("networkInterfaces"):
        body["networkInterfaces"] = [_nic(each) for each in inputs["networkInterfaces"]]
    if inputs.get("metadata"):
        body["metadata"] = {"items": items(inputs["metadata"])}
    if inputs.get("tags"):
        body["tags"] = {"items": list(inputs["tags"])}
    if inputs.get("scheduling"):
        body["scheduling"] = scheduling(inputs["scheduling"])
    affinity = inputs.get("reservationAffinity")
    if affinity:
        reservation = affinity.get("specificReservation") or {}
        body["reservationAffinity"] = {
            "consumeReservationType": affinity["type"],
            **body_fields(reservation, "key", "values"),
        }
    if inputs.get("serviceAccount"):
        body["serviceAccounts"] = [body_fields(inputs["serviceAccount"], "email", "scopes")]
    if inputs.get("shieldedInstanceConfig"):
        body["shieldedInstanceConfig"] = dict(inputs["shieldedInstanceConfig"])
    if inputs.get("effectiveLabels"):
        body["labels"] = dict(inputs["effectiveLabels"])
    return body


def machine_outputs(doc: Doc, state: Props) -> Props:
    """The same the other way. `doc` is an instance or a template's properties."""
    outputs = output_fields(doc, "canIpForward", "minCpuPlatform", "keyRevocationActionType")
    outputs |= {
        "machineType": last(doc.get("machineType")),
        "networkInterfaces": [_nic_outputs(each) for each in doc.get("networkInterfaces") or ()],
        "metadata": {each["key"]: each["value"] for each in (doc.get("metadata") or {}).get("items") or ()},
        "metadataFingerprint": (doc.get("metadata") or {}).get("fingerprint", ""),
        "tags": list((doc.get("tags") or {}).get("items") or ()),
        "tagsFingerprint": (doc.get("tags") or {}).get("fingerprint", ""),
        "scheduling": _scheduling_outputs(doc.get("scheduling") or {}),
        # The provider takes one, and carries it as one.
        "resourcePolicies": next(iter(doc.get("resourcePolicies") or ()), ""),
        "Labels": dict(doc.get("labels") or {}),
    }
    account = next(iter(doc.get("serviceAccounts") or ()), None)
    if account:
        outputs["serviceAccount"] = output_fields(account, "email", "scopes")
    affinity = doc.get("reservationAffinity")
    if affinity:
        outputs["reservationAffinity"] = {"type": affinity["consumeReservationType"]}
        if affinity.get("key"):
            outputs["reservationAffinity"]["specificReservation"] = output_fields(affinity, "key", "values")
    if doc.get("shieldedInstanceConfig"):
        outputs["shieldedInstanceConfig"] = dict(doc["shieldedInstanceConfig"])
    cards = doc.get("guestAccelerators")
    if cards:
        outputs["guestAccelerators"] = [
            {"type": _card(each["acceleratorType"], state), "count": int(each["acceleratorCount"])}
            for each in cards
        ]
    return outputs


def _card(link: str, state: Props) -> str:
    """By name where the program wrote a name."""
    types = {str(each.get("type")) for each in state.get("guestAccelerators") or ()}
    return link if link in types else last(link)


def items(values: Mapping[str, Any]) -> list[Doc]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]


def _nic(each: Props) -> Doc:
    body = body_fields(each, *_NIC, networkIP="networkIp")
    if each.get("accessConfigs"):
        body["accessConfigs"] = [access(one) for one in each["accessConfigs"]]
    return body


def access(one: Props) -> Doc:
    """A public address of an interface."""
    return {"type": "ONE_TO_ONE_NAT", **body_fields(one or {}, "networkTier", natIP="natIp")}


def _nic_outputs(doc: Doc) -> Props:
    outputs = output_fields(doc, "name", *_NIC, "ipv6AccessType", "ipv6Address", networkIp="networkIP")
    if doc.get("subnetwork"):
        outputs["subnetworkProject"] = _project(doc["subnetwork"])
    outputs["accessConfigs"] = [
        {"natIp": one.get("natIP", ""), "networkTier": one.get("networkTier", ""), "publicPtrDomainName": ""}
        for one in doc.get("accessConfigs") or ()
    ]
    return outputs


def _project(link: str) -> str:
    """The project in a URL."""
    parts = link.split("/")
    return parts[parts.index("projects") + 1] if "projects" in parts[:-1] else ""


def scheduling(inputs: Props) -> Doc:
    body = body_fields(inputs, *_SCHEDULING)
    run = inputs.get("maxRunDuration")
    if run:
        body["maxRunDuration"] = {"seconds": str(run["seconds"]), **body_fields(run, "nanos")}
    return body


def _scheduling_outputs(doc: Doc) -> Props:
    outputs = output_fields(doc, *_SCHEDULING)
    run = doc.get("maxRunDuration")
    if run:
        outputs["maxRunDuration"] = {"seconds": int(run["seconds"]), "nanos": int(run.get("nanos") or 0)}
    return outputs
