"""Networks, subnets, firewall rules, routers with their NAT, and placement policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed, OperationFailure
from orch.rehearsal.gcp.resources.kinds import Generated, Kind, Props, full, given, last, taken
from orch.rehearsal.store import Doc


class Network(Generated):
    title = "Network"
    where = "projects/{project}/global/networks/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        routing = given(
            inputs, "routingMode", "bgpBestPathSelectionMode", "bgpAlwaysCompareMed", "bgpInterRegionCost"
        )
        found = given(
            inputs,
            "name",
            "description",
            "mtu",
            "autoCreateSubnetworks",
            "enableUlaInternalIpv6",
            "internalIpv6Range",
            "networkProfile",
            "networkFirewallPolicyEnforcementOrder",
        )
        return found | ({"routingConfig": routing} if routing else {})

    def shown(self, doc: Doc, state: Props) -> Props:
        return {
            **taken(
                doc,
                "name",
                "description",
                "mtu",
                "autoCreateSubnetworks",
                "enableUlaInternalIpv6",
                "internalIpv6Range",
                "networkFirewallPolicyEnforcementOrder",
                "networkProfile",
                "selfLink",
                networkId="id",
                gatewayIpv4="gatewayIPv4",
            ),
            "numericId": doc.get("id", ""),
            **taken(
                doc.get("routingConfig") or {},
                "routingMode",
                "bgpBestPathSelectionMode",
                "bgpAlwaysCompareMed",
                "bgpInterRegionCost",
            ),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """Each field by a call of its own."""
        body = self.body(api, inputs)
        routing = {"routingMode", "bgpBestPathSelectionMode", "bgpAlwaysCompareMed", "bgpInterRegionCost"}
        if changed & routing:
            one = {"routingConfig": body.get("routingConfig", {})}
            self.change(api, resource_id, "PATCH", resource_id, one)
        for name in ("mtu", "enableUlaInternalIpv6", "networkFirewallPolicyEnforcementOrder"):
            if name in changed:
                self.change(api, resource_id, "PATCH", resource_id, {name: body.get(name)})


class Subnetwork(Generated):
    title = "Subnetwork"
    where = "projects/{project}/regions/{region}/subnetworks/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        return given(
            inputs,
            "name",
            "description",
            "network",
            "ipCidrRange",
            "privateIpGoogleAccess",
            "privateIpv6GoogleAccess",
            "stackType",
            "ipv6AccessType",
            "purpose",
            "role",
            "logConfig",
            "secondaryIpRanges",
        )

    def shown(self, doc: Doc, state: Props) -> Props:
        names = ("privateIpv6GoogleAccess", "stackType", "ipv6AccessType", "purpose", "role", "logConfig")
        more = ("externalIpv6Prefix", "internalIpv6Prefix", "ipv6CidrRange", "secondaryIpRanges", "state")
        return {
            **taken(doc, "name", "description", "network", "ipCidrRange", "privateIpGoogleAccess"),
            **taken(doc, *names, *more),
            **taken(doc, "creationTimestamp", "fingerprint", "gatewayAddress", "selfLink"),
            "subnetworkId": int(doc.get("id") or 0),
            "region": last(doc.get("region")),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        if "ipCidrRange" in changed:
            body = {"ipCidrRange": inputs.get("ipCidrRange")}
            self.change(api, resource_id, "POST", f"{resource_id}/expandIpCidrRange", body)
        if "privateIpGoogleAccess" in changed:
            body = {"privateIpGoogleAccess": bool(inputs.get("privateIpGoogleAccess"))}
            self.change(api, resource_id, "POST", f"{resource_id}/setPrivateIpGoogleAccess", body)
        rest = changed & {"stackType", "ipv6AccessType", "logConfig", "role", "privateIpv6GoogleAccess"}
        if rest or "secondaryIpRanges" in changed:
            body = given(inputs, *sorted(rest), "secondaryIpRanges")
            body["fingerprint"] = state.get("fingerprint", "")
            self.change(api, resource_id, "PATCH", resource_id, body)


class Firewall(Generated):
    title = "Firewall"
    where = "projects/{project}/global/firewalls/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        found = given(
            inputs,
            "name",
            "description",
            "network",
            "direction",
            "disabled",
            "priority",
            "sourceRanges",
            "destinationRanges",
            "sourceTags",
            "targetTags",
            "sourceServiceAccounts",
            "targetServiceAccounts",
            "logConfig",
        )
        for ours, theirs in (("allows", "allowed"), ("denies", "denied")):
            if inputs.get(ours):
                found[theirs] = [
                    {"IPProtocol": rule["protocol"], **given(rule, "ports")} for rule in inputs[ours]
                ]
        return found

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """All of it is sent; a list that was given up is sent empty."""
        body = {key: value for key, value in self.body(api, inputs).items() if key != "name"}
        for name in ("sourceRanges", "destinationRanges", "sourceTags", "targetTags", "description"):
            if name in changed and name not in body:
                body[name] = "" if name == "description" else []
        self.change(api, resource_id, "PATCH", resource_id, body)

    def shown(self, doc: Doc, state: Props) -> Props:
        found = taken(
            doc,
            "name",
            "description",
            "network",
            "direction",
            "disabled",
            "priority",
            "creationTimestamp",
            "selfLink",
        )
        sources = ("sourceRanges", "destinationRanges", "sourceTags", "targetTags")
        found |= {name: doc.get(name) or [] for name in sources}
        for ours, theirs in (("allows", "allowed"), ("denies", "denied")):
            found[ours] = [
                {"protocol": rule["IPProtocol"], "ports": rule.get("ports") or []}
                for rule in doc.get(theirs) or ()
            ]
        return found


class Router(Generated):
    title = "Router"
    where = "projects/{project}/regions/{region}/routers/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        return given(inputs, "name", "description", "network", "bgp", "encryptedInterconnectRouter")

    def shown(self, doc: Doc, state: Props) -> Props:
        return {
            **taken(doc, "name", "description", "network", "bgp", "encryptedInterconnectRouter"),
            **taken(doc, "creationTimestamp", "selfLink"),
            "region": last(doc.get("region")),
        }


_NAT = (
    "name",
    "type",
    "natIpAllocateOption",
    "natIps",
    "sourceSubnetworkIpRangesToNat",
    "subnetworks",
    "minPortsPerVm",
    "maxPortsPerVm",
    "enableDynamicPortAllocation",
    "enableEndpointIndependentMapping",
    "endpointTypes",
    "udpIdleTimeoutSec",
    "icmpIdleTimeoutSec",
    "tcpEstablishedIdleTimeoutSec",
    "tcpTransitoryIdleTimeoutSec",
    "tcpTimeWaitTimeoutSec",
    "autoNetworkTier",
    "logConfig",
)


NatChange = Callable[[Doc], Doc | None]


class RouterNat:
    """A part of its router: the provider reads the router, and patches its list."""

    def create(self, api: Api, inputs: Props) -> str:
        router = self._router(api, inputs)
        doc = api.get(router)
        if doc is None:
            why = f"googleapi: Error 404: The resource '{router}' was not found, notFound"
            raise CallFailed(f"Error creating RouterNat: {why}")
        nats = list(doc.get("nats") or ())
        name = str(inputs["name"])
        if any(each["name"] == name for each in nats):
            raise CallFailed(f"Error creating RouterNat: RouterNat {name} already exists")
        try:
            operation = api.send("PATCH", router, {"nats": [*nats, given(inputs, *_NAT)]})
        except ApiFailure as failure:
            raise CallFailed(f"Error creating RouterNat: {failure}") from failure
        try:
            api.wait("Creating RouterNat", operation)
        except OperationFailure as failure:
            raise CallFailed(f"Error waiting to create RouterNat: {failure}") from failure
        return f"{api.project}/{api.region}/{last(inputs['router'])}/{name}"

    def _router(self, api: Api, properties: Props) -> str:
        return f"projects/{api.project}/regions/{api.region}/routers/{last(properties['router'])}"

    def read(self, api: Api, resource_id: str, state: Props) -> Props | None:
        project, region, router, name = resource_id.split("/")
        doc = api.get(f"projects/{project}/regions/{region}/routers/{router}") or {}
        found = next((each for each in doc.get("nats") or () if each["name"] == name), None)
        if found is None:
            return None
        return {**taken(found, *_NAT), "router": router, "region": region}

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        self._patch(api, state, lambda each: given({**each, **inputs}, *_NAT), "Updating RouterNat")

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        try:
            self._patch(api, state, lambda _: None, "Deleting RouterNat")
        except ApiFailure as failure:
            if failure.status != 404:
                told = f'Error when reading or editing ComputeRouterNat "{resource_id}": {failure}'
                raise CallFailed(told) from failure

    def _patch(self, api: Api, state: Props, change: NatChange, activity: str) -> None:
        router = self._router(api, state)
        doc = api.get(router)
        if doc is None:
            return
        changed = [change(each) if each["name"] == state["name"] else each for each in doc.get("nats") or ()]
        api.done(activity, "PATCH", router, {"nats": [each for each in changed if each is not None]})


class ResourcePolicy(Generated):
    title = "ResourcePolicy"
    where = "projects/{project}/regions/{region}/resourcePolicies/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        return given(
            inputs,
            "name",
            "description",
            "groupPlacementPolicy",
            "workloadPolicy",
            "snapshotSchedulePolicy",
            "instanceSchedulePolicy",
        )

    def shown(self, doc: Doc, state: Props) -> Props:
        return {
            **taken(doc, "name", "description", "groupPlacementPolicy", "workloadPolicy"),
            "selfLink": full(doc.get("selfLink")),
            "region": last(doc.get("region")),
        }


TYPES: Mapping[str, Kind] = {
    "gcp:compute/network:Network": Network(),
    "gcp:compute/subnetwork:Subnetwork": Subnetwork(),
    "gcp:compute/firewall:Firewall": Firewall(),
    "gcp:compute/router:Router": Router(),
    "gcp:compute/routerNat:RouterNat": RouterNat(),
    "gcp:compute/resourcePolicy:ResourcePolicy": ResourcePolicy(),
}
