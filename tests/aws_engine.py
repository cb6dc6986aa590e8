"""An AWS fleet in the real engine, on a simulated account."""

from __future__ import annotations

import gzip
import os
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orch.components.aws.compile import CompiledAws, candidates_of, compile_aws, recovered
from orch.components.plan import Previous
from orch.providers.simulated import boto
from orch.providers.simulated.core import Cloud
from orch.spec.models import Fleet
from orch.spec.models.backends import AwsBackend
from orch.spec.state import FleetState
from orch.stacks import engine as engines
from orch.stacks.changes import Change, Drifted, changes, drifted
from orch.stacks.command import Event, Finished, call
from orch.stacks.program import program
from orch.stacks.project import find
from orch.stacks.states import deployment, outputs, work_folder


@dataclass
class Stack:
    """One fleet's stack in a folder, with a cloud of its own."""

    folder: Path
    cloud: Cloud
    name: str = "p5"
    events: list[Event] = field(default_factory=list)

    @property
    def session(self) -> Any:
        return boto.session(self.cloud)

    def compiled(self, fleet: Fleet, place: int = 0) -> CompiledAws:
        """The plan at one of the candidates, with what the stack decided before."""
        recorded = deployment(find(self.folder), self.name)
        previous = Previous.of_outputs(outputs(recorded))
        for resource in (recorded or {}).get("resources") or ():
            if resource["type"] == "orch:fleet:Aws" and not previous.pins:
                previous = recovered(resource["outputs"]["pins"])
        settings, session = AwsBackend(), self.session
        chosen = candidates_of(fleet, settings, previous, session=session)[place]
        return compile_aws(
            fleet, settings, previous, "abc123", session=session, candidate=chosen, tags={"team": "research"}
        )

    def preview(self, compiled: CompiledAws) -> tuple[Change, ...]:
        self._call(["preview"], compiled)
        return changes(self.events)

    def up(self, compiled: CompiledAws) -> tuple[Change, ...]:
        """Bring it up, in its steps; what changed in all of them."""
        changed: list[Change] = []
        if compiled.moves:
            self.down()
        for step in compiled.steps:
            self._call(["up", "--yes", "--skip-preview"], step)
            changed += changes(self.events)
        return tuple(changed)

    def try_up(self, compiled: CompiledAws) -> tuple[Finished, str]:
        """The same where it may fail: how it ended, and what it said."""
        done = self._call(["up", "--yes", "--skip-preview"], compiled, check=False)
        return done, self._said(done)

    def drift(self) -> tuple[Drifted, ...]:
        self._call(["refresh", "--preview-only"])
        return drifted(self.events)

    def down(self) -> None:
        self._call(["destroy", "--yes", "--skip-preview"])

    def state(self) -> FleetState:
        return FleetState.model_validate(_whole(outputs(deployment(find(self.folder), self.name))["fleet"]))

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

    def up_all(self, compiled: Sequence[CompiledAws]) -> None:
        """Several fleets in one stack."""

        def run() -> None:
            for each in compiled:
                each.register()

        self._call(["up", "--yes", "--skip-preview"], code=run)

    def _call(
        self,
        words: list[str],
        compiled: CompiledAws | None = None,
        *,
        check: bool = True,
        code: Callable[[], None] | None = None,
    ) -> Finished:
        project = find(self.folder)
        project.prepare()
        engine = engines.require()
        folder, environment = work_folder(project, self.name), dict(project.environment(engine))
        if deployment(project, self.name) is None:
            call(engine, ["stack", "init", self.name], folder=folder, environment=environment)
        self.events = []
        done = call(
            engine,
            [*words, "--stack", self.name],
            folder=folder,
            environment=environment,
            program=program(compiled) if compiled else code,  # type: ignore[arg-type]
            on_event=self.events.append,
        )
        if check:
            assert done.code == 0, self._said(done)
        return done

    def _said(self, done: Finished) -> str:
        told = [each["diagnosticEvent"] for each in self.events if "diagnosticEvent" in each]
        errors = [each["message"] for each in told if each["severity"] == "error"]
        return "\n".join([*errors, done.stderr])


def stack(folder: Path, monkeypatch: pytest.MonkeyPatch, **knobs: Any) -> Stack:
    """A stack whose provider `aws` is the simulated one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orch.yml").write_text("project: tests\n")
    cloud = Cloud.create(folder / "cloud")
    cloud.turn(**knobs)
    shims = folder / "bin"
    shims.mkdir()
    shim = shims / "pulumi-resource-aws"
    shim.write_text(f"#!{sys.executable}\nfrom orch.providers.simulated.plugin import main\nmain()\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ORCH_REHEARSAL_STATE", str(cloud.path))
    return Stack(folder, cloud)


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
