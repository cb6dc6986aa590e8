"""An AWS fleet in the real engine, on a simulated account, as `orch` brings it up: within this process."""

from __future__ import annotations

import gzip
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orch.components.plan import whole
from orch.providers.simulated.core import Cloud
from orch.providers.simulated.knobs import Knobs
from orch.spec.models import Fleet
from orch.spec.state import FleetState
from orch.stacks import operations
from orch.stacks.calls import Note, Step
from orch.stacks.changes import Change, Drifted
from orch.stacks.project import Project, find
from orch.stacks.rehearsal import rehearse
from orch.stacks.states import require_up
from orch.stacks.wishes import Wish


def quiet(event: Step | Note) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Stack:
    """A rehearsal of one fleet in a folder."""

    folder: Path
    project: Project
    cloud: Cloud
    name: str = "p5"

    @property
    def session(self) -> Any:
        return self.project.session()

    def preview(self, fleet: Fleet) -> tuple[Change, ...]:
        return operations.preview(self.project, self._wish(fleet), quiet).changes

    def up(self, fleet: Fleet) -> tuple[Change, ...]:
        """Bring it up; what changed in all of its steps. Raises what `orch up` tells."""
        return operations.up(self.project, self._wish(fleet), quiet).changes

    def drift(self) -> tuple[Drifted, ...]:
        return operations.drift(self.project, self.name, quiet)

    def down(self) -> None:
        operations.down(self.project, self.name, quiet)

    def state(self) -> FleetState:
        """As it is recorded: how nodes are reached in a rehearsal is another thing."""
        return FleetState.model_validate(whole(require_up(self.project, self.name)["fleet"]))

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
        return gzip.decompress(b64decode(answer["UserData"]["Value"]))

    def _wish(self, fleet: Fleet) -> Wish:
        return Wish(fleet, self.folder)


def stack(folder: Path, **knobs: Any) -> Stack:
    """A rehearsal in a folder, without machines behind the instances."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yml").write_text("project: tests\ntags: {team: research}\n")
    Cloud.create(folder / ".orch" / "rehearsal" / "aws.db", knobs=Knobs(**knobs)).store.close()
    rehearsal = rehearse(find(folder), nodes=False)
    return Stack(folder, rehearsal.project, rehearsal.cloud)
