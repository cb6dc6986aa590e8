"""Networks, subnets, firewall rules, routers with their NAT, and placement policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orch.rehearsal.gcp.resources.calls import Api, ApiFailure, CallFailed, OperationFailure
from orch.rehearsal.gcp.resources.kinds import Generated, Kind, Props, body_fields, full, last, output_fields
from orch.rehearsal.store import Doc

_ROUTING = ("routingMode", "bgpBestPathSelectionMode", "bgpAlwaysCompareMed", "bgpInterRegionCost")


class Network(Generated):
    title = "Network"
    path_template = "projects/{project}/global/networks/{name}"
    fields = (
        "name",
        "description",
        "mtu",
        "autoCreateSubnetworks",
        "enableUlaInternalIpv6",
        "internalIpv6Range",
        "networkProfile",
        "networkFirewallPolicyEnforcementOrder",
    )

    def body(self, api: Api, inputs: Props) -> Doc:
        routing = body_fields(inputs, *_ROUTING)
        return super().body(api, inputs) | ({"routingConfig": routing} if routing else {})

    def outputs(self, doc: Doc, state: Props) -> Props:
        return {
            **super().outputs(doc, state),
            **output_fields(doc, "selfLink", networkId="id", gatewayIpv4="gatewayIPv4"),
            "numericId": doc.get("id", ""),
            **output_fields(doc.get("routingConfig") or {}, *_ROUTING),
        }

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """Each field by a call of its own."""
        body = self.body(api, inputs)
        if changed & {*_ROUTING}:
            one = {"routingConfig": body.get("routingConfig", {})}
            self.change(api, resource_id, "PATCH", resource_id, one)
        for name in ("mtu", "enableUlaInternalIpv6", "networkFirewallPolicyEnforcementOrder"):
            if name in changed:
                self.change(api, resource_id, "PATCH", resource_id, {name: body.get(name)})


class Subnetwork(Generated):
    title = "Subnetwork"
    path_template = "projects/{project}/regions/{region}/subnetworks/{name}"
    fields = (
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

    def outputs(self, doc: Doc, state: Props) -> Props:
        return {
            **super().outputs(doc, state),
            **output_fields(doc, "externalIpv6Prefix", "internalIpv6Prefix", "ipv6CidrRange", "state"),
            **output_fields(doc, "creationTimestamp", "fingerprint", "gatewayAddress", "selfLink"),
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
            body = body_fields(inputs, *sorted(rest), "secondaryIpRanges")
            body["fingerprint"] = state.get("fingerprint", "")
            self.change(api, resource_id, "PATCH", resource_id, body)


class Firewall(Generated):
    title = "Firewall"
    path_template = "projects/{project}/global/firewalls/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        body = body_fields(
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
        for pulumi_name, api_name in (("allows", "allowed"), ("denies", "denied")):
            if inputs.get(pulumi_name):
                body[api_name] = [
                    {"IPProtocol": rule["protocol"], **body_fields(rule, "ports")}
                    for rule in inputs[pulumi_name]
                ]
        return body

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        """All of it is sent; a list that was given up is sent empty."""
        body = {key: value for key, value in self.body(api, inputs).items() if key != "name"}
        for name in ("sourceRanges", "destinationRanges", "sourceTags", "targetTags", "description"):
            if name in changed and name not in body:
                body[name] = "" if name == "description" else []
        self.change(api, resource_id, "PATCH", resource_id, body)

    def outputs(self, doc: Doc, state: Props) -> Props:
        result = output_fields(
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
        result |= {name: doc.get(name) or [] for name in sources}
        for pulumi_name, api_name in (("allows", "allowed"), ("denies", "denied")):
            result[pulumi_name] = [
                {"protocol": rule["IPProtocol"], "ports": rule.get("ports") or []}
                for rule in doc.get(api_name) or ()
            ]
        return result


class Router(Generated):
    title = "Router"
    path_template = "projects/{project}/regions/{region}/routers/{name}"
    fields = ("name", "description", "network", "bgp", "encryptedInterconnectRouter")

    def outputs(self, doc: Doc, state: Props) -> Props:
        return {
            **super().outputs(doc, state),
            **output_fields(doc, "creationTimestamp", "selfLink"),
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
            operation = api.send("PATCH", router, {"nats": [*nats, body_fields(inputs, *_NAT)]})
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
        nat = next((each for each in doc.get("nats") or () if each["name"] == name), None)
        if nat is None:
            return None
        return {**output_fields(nat, *_NAT), "router": router, "region": region}

    def update(
        self, api: Api, resource_id: str, state: Props, inputs: Props, changed: frozenset[str]
    ) -> None:
        self._patch(api, state, lambda each: body_fields({**each, **inputs}, *_NAT), "Updating RouterNat")

    def delete(self, api: Api, resource_id: str, state: Props) -> None:
        try:
            self._patch(api, state, lambda _: None, "Deleting RouterNat")
        except ApiFailure as failure:
            if failure.status != 404:
                message = f'Error when reading or editing ComputeRouterNat "{resource_id}": {failure}'
                raise CallFailed(message) from failure

    def _patch(self, api: Api, state: Props, change: NatChange, activity: str) -> None:
        router = self._router(api, state)
        doc = api.get(router)
        if doc is None:
            return
        nats = [change(each) if each["name"] == state["name"] else each for each in doc.get("nats") or ()]
        api.perform(activity, "PATCH", router, {"nats": [each for each in nats if each is not None]})


class ResourcePolicy(Generated):
    title = "ResourcePolicy"
    path_template = "projects/{project}/regions/{region}/resourcePolicies/{name}"

    def body(self, api: Api, inputs: Props) -> Doc:
        return body_fields(
            inputs,
            "name",
            "description",
            "groupPlacementPolicy",
            "workloadPolicy",
            "snapshotSchedulePolicy",
            "instanceSchedulePolicy",
        )

    def outputs(self, doc: Doc, state: Props) -> Props:
        return {
            **output_fields(doc, "name", "description", "groupPlacementPolicy", "workloadPolicy"),
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
