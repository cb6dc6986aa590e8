"""Instances after their launch: state and termination. Sources: rehearsal/README.md, "Launch"."""

from __future__ import annotations

from orch.rehearsal.aws.api.actions import Fields, Request, action, before_each, path, public, select
from orch.rehearsal.aws.api.compute.capacity import (
    capacity_left,
    instance_missing,
    insufficient,
    known_type,
    live,
    occupy,
    state_of,
    too_many_vcpus,
    vacate,
    vcpus_left,
)
from orch.rehearsal.aws.api.compute.volumes import release
from orch.rehearsal.aws.api.errors import AwsError
from orch.rehearsal.aws.api.network.addresses import detach_from
from orch.rehearsal.store import Doc

STATES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}


def current(request: Request, doc: Doc) -> Doc:
    name = state_of(request, doc)
    result = {**doc, "State": {"Code": STATES[name], "Name": name}}
    if name == "terminated":
        for key in ("PrivateIpAddress", "PublicIpAddress", "SubnetId", "VpcId"):
            result.pop(key, None)
        result |= {"NetworkInterfaces": [], "SecurityGroups": [], "BlockDeviceMappings": []}
    return result


INSTANCE_FIELDS: Fields = {
    "instance-id": path("InstanceId"),
    "instance-state-name": path("State", "Name"),
    "instance-state-code": path("State", "Code"),
    "instance-type": path("InstanceType"),
    "availability-zone": path("Placement", "AvailabilityZone"),
    "placement-group-name": path("Placement", "GroupName"),
    "capacity-reservation-id": path("CapacityReservationId"),
    "instance-lifecycle": path("InstanceLifecycle"),
    "client-token": path("ClientToken"),
    "image-id": path("ImageId"),
    "vpc-id": path("VpcId"),
    "subnet-id": path("SubnetId"),
    "private-ip-address": path("PrivateIpAddress"),
    "ip-address": path("PublicIpAddress"),
    "instance.group-id": path("SecurityGroups", "GroupId"),
    "network-interface.network-interface-id": path("NetworkInterfaces", "NetworkInterfaceId"),
    "key-name": path("KeyName"),
    "iam-instance-profile.arn": path("IamInstanceProfile", "Arn"),
}


def find(request: Request, ids: list[str] | None = None) -> list[Doc]:
    """The instances that a Describe call selects; terminated ones are in for about an hour, as in EC2."""
    if ids:
        docs = []
        for one in ids:
            instance = request.store.get(one, "instance")
            if instance is None or instance["_region"] != request.region:
                raise instance_missing(one)
            docs.append(instance)
    else:
        docs = [doc for _, doc in request.store.each("instance", request.region, gone=True)]
    docs = [current(request, doc) for doc in docs]
    return select(request, "instance", INSTANCE_FIELDS, docs=docs)


@action("DescribeInstances")
def describe_instances(request: Request) -> Doc:
    matches = find(request, list(request.get("InstanceIds") or ()))
    start = 0
    if request.get("NextToken"):
        text = str(request["NextToken"])
        if not text.startswith("page-") or not text[5:].isdigit():
            raise AwsError("InvalidNextToken", f"The token '{text}' is invalid.")
        start = int(text[5:])
    size = request.get("MaxResults") or 1000
    reservations: dict[str, Doc] = {}
    for doc in matches[start : start + size]:
        entry = reservations.setdefault(
            doc["_reservation"],
            {
                "ReservationId": doc["_reservation"],
                "OwnerId": request.owner,
                "Groups": [],
                "Instances": [],
            },
        )
        entry["Instances"].append(public(doc))
    result: Doc = {"Reservations": list(reservations.values())}
    if start + size < len(matches):
        result["NextToken"] = f"page-{start + size}"
    return result


@action("DescribeInstanceStatus")
def describe_instance_status(request: Request) -> Doc:
    rows = [
        {
            "InstanceId": doc["InstanceId"],
            "AvailabilityZone": doc["Placement"]["AvailabilityZone"],
            "InstanceState": doc["State"],
            "InstanceStatus": {"Status": "ok"},
            "SystemStatus": {"Status": "ok"},
        }
        for doc in find(request, list(request.get("InstanceIds") or ()))
        if request.get("IncludeAllInstances") or doc["State"]["Name"] == "running"
    ]
    return {"InstanceStatuses": rows}


@action("DescribeInstanceAttribute")
def describe_instance_attribute(request: Request) -> Doc:
    doc = live(request, request["InstanceId"])
    name = request["Attribute"]
    result: Doc = {"InstanceId": doc["InstanceId"]}
    if name == "userData":
        user_data = request.store.get(f"user-data {doc['InstanceId']}")
        result["UserData"] = {"Value": user_data["Value"]} if user_data else {}
    elif name == "disableApiTermination":
        result["DisableApiTermination"] = {"Value": doc["_protected"]}
    elif name == "instanceInitiatedShutdownBehavior":
        result["InstanceInitiatedShutdownBehavior"] = {"Value": doc["_shutdown"]}
    elif name == "instanceType":
        result["InstanceType"] = {"Value": doc["InstanceType"]}
    else:
        raise AwsError("InvalidParameterValue", f"Value ({name}) for parameter attribute is invalid.")
    return result


@action("ModifyInstanceAttribute")
def modify_instance_attribute(request: Request) -> Doc:
    doc = live(request, request["InstanceId"])
    stopped = state_of(request, doc) == "stopped"
    if request.get("DisableApiTermination") is not None:
        doc["_protected"] = bool(request["DisableApiTermination"].get("Value"))
    if request.get("InstanceInitiatedShutdownBehavior") is not None:
        doc["_shutdown"] = request["InstanceInitiatedShutdownBehavior"]["Value"]
    if request.get("SourceDestCheck") is not None:
        if len(doc["NetworkInterfaces"]) > 1:
            raise AwsError(
                "InvalidInstanceID",
                f"There are multiple interfaces attached to instance '{doc['InstanceId']}'.",
            )
        doc["SourceDestCheck"] = bool(request["SourceDestCheck"].get("Value"))
    if request.get("Groups"):
        from orch.rehearsal.aws.api.network.security_groups import group_named

        if len(doc["NetworkInterfaces"]) > 1:
            raise AwsError(
                "InvalidInstanceID",
                f"There are multiple interfaces attached to instance '{doc['InstanceId']}'.",
            )
        interface = doc["NetworkInterfaces"][0]
        interface["Groups"] = doc["SecurityGroups"] = group_named(request, list(request["Groups"]))
        request.store.unrefer(interface["NetworkInterfaceId"], "group")
        for group in request["Groups"]:
            request.store.refer(interface["NetworkInterfaceId"], group, "group")
    for name in ("InstanceType", "UserData"):
        if request.get(name) is None:
            continue
        if not stopped:
            raise AwsError(
                "IncorrectInstanceState",
                f"The instance '{doc['InstanceId']}' is not in the 'stopped' state.",
            )
        if name == "InstanceType":
            doc["InstanceType"] = known_type(request["InstanceType"]["Value"]).name
        else:
            value = request["UserData"].get("Value")
            request.add(f"user-data {doc['InstanceId']}", "user-data", {"Value": value})
    request.add(doc["InstanceId"], "instance", doc)
    return {}


@action("ModifyInstanceMetadataOptions")
def modify_instance_metadata_options(request: Request) -> Doc:
    doc = live(request, request["InstanceId"])
    for key in ("HttpTokens", "HttpPutResponseHopLimit", "HttpEndpoint", "InstanceMetadataTags"):
        if request.get(key) is not None:
            doc["MetadataOptions"][key] = request[key]
    request.add(doc["InstanceId"], "instance", doc)
    return {"InstanceId": doc["InstanceId"], "InstanceMetadataOptions": doc["MetadataOptions"]}


# -- the end -----------------------------------------------------------------------------------------------


@action("TerminateInstances")
def terminate_instances(request: Request) -> Doc:
    docs = [live(request, one) for one in request["InstanceIds"]]
    for doc in docs:
        if doc["_protected"] and "_terminated" not in doc:
            raise AwsError(
                "OperationNotPermitted",
                f"The instance '{doc['InstanceId']}' may not be terminated. Modify its "
                f"'disableApiTermination' "
                "instance attribute and try again.",
            )
    changes = []
    for doc in docs:
        before = state_of(request, doc)
        if "_terminated" not in doc:
            end(request, doc, "Client.UserInitiatedShutdown: User initiated shutdown")
        after = "terminated" if before == "terminated" else "shutting-down"
        changes.append(
            {
                "InstanceId": doc["InstanceId"],
                "PreviousState": {"Code": STATES[before], "Name": before},
                "CurrentState": {"Code": STATES[after], "Name": after},
            }
        )
    return {"TerminatingInstances": changes}


def end(request: Request, doc: Doc, reason: str) -> None:
    """Begin the termination of an instance; it releases its resources when the shutdown is over."""
    delay = request.cloud.knobs_now().shutting_down_s
    doc["_terminated"] = request.cloud.now() + delay
    doc["StateTransitionReason"] = "User initiated"
    doc["StateReason"] = {"Code": reason.split(":", maxsplit=1)[0], "Message": reason}
    request.add(doc["InstanceId"], "instance", doc)
    if delay:
        request.store.put_meta("ending", [*(request.store.meta("ending") or []), doc["InstanceId"]])
    else:
        _finish(request, doc)


def shut_down(request: Request, instance: str) -> None:
    """The operating system of an instance powers it off: that stops it, or terminates it, as it was launched
    to. Source: EC2 user guide, "Change instance initiated shutdown behavior"."""
    doc = live(request, instance)
    if state_of(request, doc) != "running":
        return
    if doc["_shutdown"] == "terminate":
        end(request, doc, "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
        return
    doc["_stopped"] = True
    vacate(request, instance, doc["_market"])
    request.store.unrefer(instance, "reserved")
    request.add(instance, "instance", doc)


def take_back(request: Request, instance: str) -> None:
    """EC2 ends a spot instance. Source: EC2 API, StateReason; user guide, "Spot Instance interruptions"."""
    reason = "Server.SpotInstanceTermination: Spot instance termination"
    doc = live(request, instance)
    if "_terminated" not in doc:
        end(request, doc, reason)


def _finish(request: Request, doc: Doc) -> None:
    for one in doc["NetworkInterfaces"]:
        detach_from(request, one["NetworkInterfaceId"])
        request.store.remove(one["NetworkInterfaceId"])
    for one in doc["BlockDeviceMappings"]:
        volume = request.store.get(one["Ebs"]["VolumeId"], "volume")
        if volume is not None and not one["Ebs"].get("DeleteOnTermination", True):
            release(request, volume)
        else:
            request.store.remove(one["Ebs"]["VolumeId"])
    request.store.end(doc["InstanceId"])


@before_each()
def settle(request: Request) -> None:
    """Apply the passage of time: end shutdowns that are over, and Capacity Blocks at their end."""
    ending = request.store.meta("ending") or []
    if ending:
        remaining = []
        for instance in ending:
            doc = request.store.get(instance, "instance")
            if doc and request.cloud.now() >= doc["_terminated"]:
                _finish(Request(request.cloud, {}, doc["_region"]), doc)
            else:
                remaining.append(instance)
        request.store.put_meta("ending", remaining)


# -- stop and start ----------------------------------------------------------------------------------------


@action("StopInstances")
def stop_instances(request: Request) -> Doc:
    changes = []
    for one in request["InstanceIds"]:
        doc = live(request, one)
        before = state_of(request, doc)
        if before not in {"running", "stopped"}:
            raise AwsError(
                "IncorrectInstanceState",
                f"The instance '{one}' is not in a state from which it can be stopped.",
            )
        if before == "running":
            doc["_stopped"] = True
            vacate(request, one, doc["_market"])
            request.store.unrefer(one, "reserved")
            request.add(one, "instance", doc)
        changes.append(_change(one, before, "stopping" if before == "running" else "stopped"))
    return {"StoppingInstances": changes}


@action("StartInstances")
def start_instances(request: Request) -> Doc:
    changes = []
    for one in request["InstanceIds"]:
        doc = live(request, one)
        before = state_of(request, doc)
        if before not in {"running", "stopped"}:
            raise AwsError(
                "IncorrectInstanceState",
                f"The instance '{one}' is not in a state from which it can be started.",
            )
        if before == "stopped":
            kind, zone, market = (
                known_type(doc["InstanceType"]),
                doc["Placement"]["AvailabilityZone"],
                doc["_market"],
            )
            available, limit = vcpus_left(request, kind, market)
            if kind.vcpus > available:
                raise too_many_vcpus(limit)
            there = capacity_left(request, kind.name, zone, market)
            if there is not None and there < 1:
                raise insufficient(request, kind.name, zone)
            occupy(request, one, kind, zone, market=market)
            doc.pop("_stopped")
            doc.pop("CapacityReservationId", None)
            doc["_ready"] = request.cloud.now() + request.cloud.knobs_now().pending_s
            request.add(one, "instance", doc)
        changes.append(_change(one, before, "pending" if before == "stopped" else "running"))
    return {"StartingInstances": changes}


def _change(instance: str, before: str, after: str) -> Doc:
    return {
        "InstanceId": instance,
        "PreviousState": {"Code": STATES[before], "Name": before},
        "CurrentState": {"Code": STATES[after], "Name": after},
    }
