"""What instances and templates have in common: the API's words as properties, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orch.rehearsal.gcp.resources.kinds import Props, given, last, taken
from orch.rehearsal.store import Doc

_SCHEDULING = (
    "automaticRestart",
    "onHostMaintenance",
    "preemptible",
    "provisioningModel",
    "instanceTerminationAction",
    "minNodeCpus",
    "availabilityDomain",
)
_NIC = ("network", "subnetwork", "nicType", "stackType", "queueCount", "aliasIpRanges", "networkAttachment")


def machine(inputs: Props) -> Doc:
    """What of a request is the same for an instance and for a template's properties."""
    found = given(inputs, "canIpForward", "minCpuPlatform", "keyRevocationActionType")
    if inputs.get("networkInterfaces"):
        found["networkInterfaces"] = [_nic(each) for each in inputs["networkInterfaces"]]
    if inputs.get("metadata"):
        found["metadata"] = {"items": items(inputs["metadata"])}
    if inputs.get("tags"):
        found["tags"] = {"items": list(inputs["tags"])}
    if inputs.get("scheduling"):
        found["scheduling"] = scheduling(inputs["scheduling"])
    affinity = inputs.get("reservationAffinity")
    if affinity:
        held = affinity.get("specificReservation") or {}
        found["reservationAffinity"] = {
            "consumeReservationType": affinity["type"],
            **given(held, "key", "values"),
        }
    if inputs.get("serviceAccount"):
        found["serviceAccounts"] = [given(inputs["serviceAccount"], "email", "scopes")]
    if inputs.get("shieldedInstanceConfig"):
        found["shieldedInstanceConfig"] = dict(inputs["shieldedInstanceConfig"])
    if inputs.get("effectiveLabels"):
        found["labels"] = dict(inputs["effectiveLabels"])
    return found


def machine_shown(doc: Doc, state: Props) -> Props:
    """The same the other way. `doc` is an instance or a template's properties."""
    found = taken(doc, "canIpForward", "minCpuPlatform", "keyRevocationActionType")
    found |= {
        "machineType": last(doc.get("machineType")),
        "networkInterfaces": [_nic_shown(each) for each in doc.get("networkInterfaces") or ()],
        "metadata": {each["key"]: each["value"] for each in (doc.get("metadata") or {}).get("items") or ()},
        "metadataFingerprint": (doc.get("metadata") or {}).get("fingerprint", ""),
        "tags": list((doc.get("tags") or {}).get("items") or ()),
        "tagsFingerprint": (doc.get("tags") or {}).get("fingerprint", ""),
        "scheduling": _scheduling_shown(doc.get("scheduling") or {}),
        # The provider takes one, and carries it as one.
        "resourcePolicies": next(iter(doc.get("resourcePolicies") or ()), ""),
        "Labels": dict(doc.get("labels") or {}),
    }
    account = next(iter(doc.get("serviceAccounts") or ()), None)
    if account:
        found["serviceAccount"] = taken(account, "email", "scopes")
    affinity = doc.get("reservationAffinity")
    if affinity:
        found["reservationAffinity"] = {"type": affinity["consumeReservationType"]}
        if affinity.get("key"):
            found["reservationAffinity"]["specificReservation"] = taken(affinity, "key", "values")
    if doc.get("shieldedInstanceConfig"):
        found["shieldedInstanceConfig"] = dict(doc["shieldedInstanceConfig"])
    cards = doc.get("guestAccelerators")
    if cards:
        found["guestAccelerators"] = [
            {"type": _card(each["acceleratorType"], state), "count": int(each["acceleratorCount"])}
            for each in cards
        ]
    return found


def _card(link: str, state: Props) -> str:
    """By name where the program wrote a name."""
    written = {str(each.get("type")) for each in state.get("guestAccelerators") or ()}
    return link if link in written else last(link)


def items(values: Mapping[str, Any]) -> list[Doc]:
    return [{"key": key, "value": value} for key, value in sorted(values.items())]


def _nic(each: Props) -> Doc:
    found = given(each, *_NIC, networkIP="networkIp")
    if each.get("accessConfigs"):
        found["accessConfigs"] = [access(one) for one in each["accessConfigs"]]
    return found


def access(one: Props) -> Doc:
    """A public address of an interface."""
    return {"type": "ONE_TO_ONE_NAT", **given(one or {}, "networkTier", natIP="natIp")}


def _nic_shown(doc: Doc) -> Props:
    found = taken(doc, "name", *_NIC, "ipv6AccessType", "ipv6Address", networkIp="networkIP")
    if doc.get("subnetwork"):
        found["subnetworkProject"] = _project(doc["subnetwork"])
    found["accessConfigs"] = [
        {"natIp": one.get("natIP", ""), "networkTier": one.get("networkTier", ""), "publicPtrDomainName": ""}
        for one in doc.get("accessConfigs") or ()
    ]
    return found


def _project(link: str) -> str:
    """The project in a URL."""
    parts = link.split("/")
    return parts[parts.index("projects") + 1] if "projects" in parts[:-1] else ""


def scheduling(given_: Props) -> Doc:
    found = given(given_, *_SCHEDULING)
    run = given_.get("maxRunDuration")
    if run:
        found["maxRunDuration"] = {"seconds": str(run["seconds"]), **given(run, "nanos")}
    return found


def _scheduling_shown(doc: Doc) -> Props:
    found = taken(doc, *_SCHEDULING)
    run = doc.get("maxRunDuration")
    if run:
        found["maxRunDuration"] = {"seconds": int(run["seconds"]), "nanos": int(run.get("nanos") or 0)}
    return found
