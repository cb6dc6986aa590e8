"""An AWS fleet in the real engine, on a simulated account, as `orch` brings it up: within this process."""

from __future__ import annotations

import email
import gzip
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.clouds.cloud_engine import CloudStack

from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.project import rehearse
from orch.rehearsal.scenario import Knobs
from orch.stacks.project.project import find


@dataclass(frozen=True)
class Stack(CloudStack):
    """A rehearsal of one AWS fleet in a folder."""

    cloud: Cloud

    @property
    def session(self) -> Any:
        return self.project.session("aws")

    def live(self, region: str = "us-east-1", instance_type: str | None = None) -> list[dict[str, Any]]:
        """Instances of a region that run: the cloud's own list."""
        pages = self.session.client("ec2", region_name=region).describe_instances()["Reservations"]
        found = [each for page in pages for each in page["Instances"]]
        return [
            each
            for each in found
            if each["State"]["Name"] not in ("terminated", "shutting-down")
            and instance_type in (None, each["InstanceType"])
        ]

    def user_data(self, name: str, region: str = "us-east-1") -> bytes:
        """What an instance started with, by its name."""
        tags = [
            {"Name": "tag:Name", "Values": [name]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        ec2 = self.session.client("ec2", region_name=region)
        (page,) = ec2.describe_instances(Filters=tags)["Reservations"]
        (instance,) = page["Instances"]
        answer = ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
        (part,) = email.message_from_bytes(b64decode(answer["UserData"]["Value"])).get_payload()
        return gzip.decompress(part.get_payload(decode=True))


def stack(folder: Path, **knobs: Any) -> Stack:
    """A rehearsal in a folder, without machines behind the instances."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yml").write_text("project: tests\ntags: {team: research}\n")
    Cloud.create(folder / ".orch" / "rehearsal" / "aws.db", knobs=Knobs(**knobs)).store.close()
    rehearsal = rehearse(find(folder), nodes=False)
    return Stack(folder, rehearsal.project, "p5", rehearsal.cloud)
