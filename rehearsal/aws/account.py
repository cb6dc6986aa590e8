"""One simulated AWS account: its calls, and what a test may ask it.

What it shares with other clouds is in account.py.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from orch.rehearsal.aws.api.errors import THROTTLED, AwsError
from orch.rehearsal.calls import IncomingCall, Refusal
from orch.rehearsal.machines import SimulatedMachine
from orch.rehearsal.nodes.account import AccountWithNodes
from orch.rehearsal.scenario import Failure, NodeScenario
from orch.rehearsal.store import Doc

GLOBAL = "aws-global"
"""The region of services that have none."""

HIDDEN = {"UserData", "PublicKeyMaterial"}

KINDS = (
    "vpc",
    "subnet",
    "internet-gateway",
    "natgateway",
    "elastic-ip",
    "route-table",
    "security-group",
    "placement-group",
    "capacity-reservation",
    "launch-template",
    "instance",
    "key-pair",
    "vpc-endpoint",
    "role",
    "instance-profile",
    "efs-file-system",
    "efs-mount-target",
    "fsx-file-system",
)


class Cloud(AccountWithNodes):
    """An AWS account in a file."""

    name: ClassVar[str] = "aws"
    shows_instances: ClassVar[frozenset[str]] = frozenset({"DescribeInstances"})

    # -- how it refuses -----------------------------------------------------------------------------------

    def denied_call(self, call: IncomingCall) -> AwsError:
        code = "UnauthorizedOperation" if call.service == "ec2" else "AccessDenied"
        action = f"{call.service}:{call.action}"
        return AwsError(code, f"You are not authorized to perform this operation: {action} on this resource.")

    def injected_failure(self, failure: Failure, call: IncomingCall) -> AwsError:
        return AwsError(failure.code, failure.message)

    def throttled(self, call: IncomingCall) -> AwsError:
        return AwsError(THROTTLED, "Request limit exceeded.")

    def after_refusal(self, refusal: Refusal) -> None:
        pass

    # -- what a rule needs --------------------------------------------------------------------------------

    def new_id(self, prefix: str) -> str:
        """An id as AWS forms them: the prefix and 17 hex digits, the first of them 0."""
        number = self.store.count(f"id {prefix}")
        return f"{prefix}-0{hashlib.sha256(f'{self.seed} {prefix} {number}'.encode()).hexdigest()[:16]}"

    def quota(self, code: str) -> float:
        from orch.rehearsal.aws.data.tables import quotas

        return self.knobs_now().quotas.get(code, quotas()[code].value)

    # -- calls --------------------------------------------------------------------------------------------

    def call(
        self,
        action: str,
        params: Doc | None = None,
        *,
        service: str = "ec2",
        region: str = "us-east-1",
        caller: str = "api",
    ) -> Doc:
        """Do one API call. Parameters and result as botocore's models name them. Raises AwsError."""
        parameters = dict(params or {})
        region = GLOBAL if service in {"iam", "sts"} else region
        logged = {key: value for key, value in parameters.items() if key not in HIDDEN}
        call = IncomingCall(service, action, region, caller, logged)
        return self.perform(call, lambda: self._effect(call, parameters))

    def _effect(self, call: IncomingCall, parameters: Doc) -> Doc:
        from orch.rehearsal.aws.api.actions import BEFORE, Request, all_actions

        function = all_actions().get((call.service, call.action))
        if function is None:
            raise AwsError("InvalidAction", f"The action {call.action} is not valid for this web service.")
        if parameters.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
        request = Request(self, parameters, call.region)
        for before in (*BEFORE[""], *BEFORE.get(call.service, ())):
            before(request)
        return function(request)

    # -- behind the back ----------------------------------------------------------------------------------

    def add_capacity_block(self, kind: str, zone: str, count: int, *, start: float, end: float) -> str:
        """A Capacity Block that was bought elsewhere; its reservation id."""
        from orch.rehearsal.aws.api.actions import Request
        from orch.rehearsal.aws.api.compute.reservations import add_capacity_block

        with self.store.transaction():
            doc = add_capacity_block(Request(self, {}, zone[:-1]), kind, zone, count, start=start, end=end)
        return str(doc["CapacityReservationId"])

    def shut_down(self, instance: str) -> None:
        from orch.rehearsal.aws.api.actions import Request
        from orch.rehearsal.aws.api.compute.instances import shut_down

        with self.store.transaction():
            region = str((self.store.get(instance, "instance") or {}).get("_region"))
            shut_down(Request(self, {}, region), instance)

    def take_back(self, instance: str) -> None:
        """EC2 takes a spot instance back."""
        from orch.rehearsal.aws.api.actions import Request
        from orch.rehearsal.aws.api.compute.instances import take_back
        from orch.rehearsal.nodes import containers

        with self.store.transaction():
            region = str((self.store.get(instance, "instance") or {}).get("_region"))
            take_back(Request(self, {}, region), instance)
        containers.stop(self, instance)

    # -- what a test may ask ------------------------------------------------------------------------------

    def everything(self) -> dict[str, str]:
        """Id -> kind of all that was made and is still there."""
        return self.created_resources(KINDS, unless=_is_builtin)

    # -- local nodes --------------------------------------------------------------------------------------

    def update_local_nodes(self, scenario: NodeScenario, action: str, result: Doc) -> None:
        from orch.rehearsal.nodes import containers, disks

        if action == "RunInstances":
            for doc in result["Instances"]:
                instance = doc["InstanceId"]
                region = doc["Placement"]["AvailabilityZone"][:-1]
                with containers.ended_on_error(
                    lambda one=instance, where=region: self.call(
                        "TerminateInstances", {"InstanceIds": [one]}, region=where
                    )
                ):
                    containers.start(self, scenario, instance)
        elif action == "DeleteFileSystem":
            from orch.rehearsal.aws.api.storage import GONE

            with self.store.transaction():
                gone: list[str] = self.store.meta(GONE) or []
                self.store.put_meta(GONE, [])
            if gone:
                disks.remove_disks(self, *gone)
        elif action == "TerminateInstances":
            for change in result["TerminatingInstances"]:
                containers.stop(self, change["InstanceId"])
        elif action == "DeleteVolume":
            disks.remove_disks(self, result["VolumeId"])
        elif action in ("AttachVolume", "DetachVolume"):
            # Source: EBS user guide, "Identify NVMe volumes": the link that udev makes.
            link = f"nvme-Amazon_Elastic_Block_Store_{result['VolumeId'].replace('-', '')}"
            disk = disks.Disk(result["VolumeId"], f"/dev/disk/by-id/{link}")
            disks.show_disk(self, scenario, result["InstanceId"], disk, there=action == "AttachVolume")

    def machine(self, instance: str) -> SimulatedMachine | None:
        import base64

        from orch.rehearsal.aws.data.tables import types

        with self.store.transaction():
            doc = self.store.get(instance, "instance")
            data = self.store.get(f"user-data {instance}")
        if doc is None or data is None:
            return None
        tags = {tag["Key"]: tag["Value"] for tag in doc["Tags"]}
        return SimulatedMachine(
            instance=instance,
            slug=instance,
            hostname=tags.get("Name") or instance,
            type=doc["InstanceType"],
            user_data=base64.b64decode(data["Value"]),
            placeholders=types()[doc["InstanceType"]].device_files(),
        )


def _is_builtin(doc: Doc) -> bool:
    main: Any = any(association.get("Main") for association in doc.get("Associations") or ())
    return bool(doc.get("_default") or doc.get("GroupName") == "default" or main)
