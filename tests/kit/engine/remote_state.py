"""Fleets on a simulated AWS account whose state lies in a bucket, as two laptops or CI jobs share it.

Run as a program it is one caller: remote_state.py FOLDER STATE up|down|unlock|preview|save|apply. `save`
writes plan.json, which `apply` applies.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from kit import TESTS
from kit.clouds.cloud_engine import quiet
from kit.clouds.rehearsals import Rehearsed
from kit.support import Said, kill

from orch.cli.errors import run, tell
from orch.cli.fleets import preview_all, preview_files
from orch.cli.fleets.saved_plans import ApplyMeans, apply_saved
from orch.rehearsal.project import rehearse
from orch.spec.loader.load import load_paths
from orch.spec.models import Fleet
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project, find
from orch.stacks.provisioning import operations
from orch.stacks.pulumi.progress import EngineStep, Note, Progress
from orch.stacks.stack.state import deployment

KIND = "g6.xlarge"
PLAN = "plan.json"

# Who calls: orch, of which the engine is a child, and the provider one of the engine.
LOG_CALL = (
    "caller=$ORCH_SIM_PID; case \"$(tr '\\0' ' ' < /proc/$ORCH_SIM_PARENT/cmdline)\" in "
    "*--non-interactive*) caller=$(ps -o ppid= -p $ORCH_SIM_PARENT);; esac; "
    "echo $ORCH_SIM_ACTION $caller $(date +%s.%N) >> calls.txt; "
)
# An instance is there, and whoever makes it hears so once the test says it, or never when it was killed.
WAIT = "while [ ! -e go ] && kill -0 $ORCH_SIM_PID; do sleep 0.1; done"


@dataclass(frozen=True)
class Called:
    """A call that makes or ends instances: the process number of the orch that made it, and when."""

    action: str
    caller: int
    at: float


@dataclass(frozen=True)
class Shared(Rehearsed):
    """A project of one fleet whose state is in a bucket."""

    state: str = ""

    @classmethod
    def begin(cls, path: Path, state: str, nodes: int) -> Shared:
        made: Rehearsed = Rehearsed.make(path)
        there = cls(made.path, state)
        there.fleet(
            nodes,
            instance_types=[KIND],
            placement="any",
            resources={"gpu": "L4:1"},
            network={"bastion": False},
        )
        log = f"cd '{there.path}'; {LOG_CALL}"
        commands = {"RunInstances": log + WAIT, "TerminateInstances": log}
        there.cloud.turn(
            hooks=[
                {"action": action, "when": "after", "command": command}
                for action, command in commands.items()
            ]
        )
        return there

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PULUMI_CONFIG_PASSPHRASE": "for tests",
            "PULUMI_HOME": str(self.path / "home"),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        }

    def caller(self, verb: str) -> subprocess.Popen[str]:
        """One more who does something with the fleet, at the same time as others."""
        return subprocess.Popen(
            [sys.executable, __file__, str(self.path), self.state, verb],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def does(self, verb: str) -> Said:
        """What a caller said, when it has ended."""
        caller = self.caller(verb)
        out, err = caller.communicate(timeout=500)
        return Said(caller.returncode, out, err)

    def go(self) -> None:
        """From now on those who make instances hear that they are there."""
        (self.path / "go").touch()

    def calls_made(self) -> list[Called]:
        file = self.path / "calls.txt"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Called(action, int(caller), float(at)) for action, caller, at in rows]


@contextmanager
def bucket() -> Iterator[str]:
    """A bucket on this machine, as a Pulumi backend.

    Its name is its own: the servers that one process starts share their buckets.
    """
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    name = f"orch-state-{secrets.token_hex(4)}"
    try:
        boto3.client(
            "s3",
            endpoint_url=f"http://{host}:{port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        ).create_bucket(Bucket=name)
        options = "disableSSL=true&s3ForcePathStyle=true&region=us-east-1"
        yield f"s3://{name}?endpoint={host}:{port}&{options}"
    finally:
        server.stop()


def objects_in(state: str) -> dict[str, str]:
    """What a bucket has: a mark of its content by the name of each object."""
    import boto3

    name = state.removeprefix("s3://").partition("?")[0]
    endpoint = state.partition("endpoint=")[2].partition("&")[0]
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{endpoint}",
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    return {each["Key"]: each["ETag"] for each in client.list_objects_v2(Bucket=name).get("Contents", ())}


def kill_tree(process: subprocess.Popen[str]) -> None:
    """End a caller, its engine and its providers, at once."""
    kill(*_tree(process.pid))
    process.communicate(timeout=60)


def _tree(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            for thread in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
    return found


def project_of(folder: Path, state: str) -> Project:
    return replace(rehearse(find(folder), nodes=False).project, state_url=state)


def recorded_instances(there: Shared) -> set[str]:
    """Instances that the state knows."""
    with patch.dict(os.environ, there.environment):
        found = (deployment(project_of(there.path, there.state), there.called) or {}).get("resources") or ()
    return {each["id"] for each in found if each["type"] == "aws:ec2/instance:Instance"}


def main(folder: Path, state: str, verb: str) -> None:
    project = project_of(folder, state)
    if verb == "up":
        operations.up(project, request(folder), told)
    elif verb == "down":
        operations.down(project, "p5", quiet)
    elif verb == "preview":
        operations.preview(project, request(folder), quiet)
    elif verb == "save":
        wanted = preview_all.Wanted(saves=True, basis=True)
        with patch.object(preview_all, "project_at", lambda *_, **__: project):
            previews = preview_all.preview_all("p5.yml", wanted, [PLAN])
        saved = preview_files.saved_plan(previews, preview_files.commit_behind(previews))
        assert saved is not None
        Path(PLAN).write_text(saved.text())
        sys.exit(int(previews.code))
    elif verb == "apply":
        documents = load_paths(["p5.yml"]).require().documents
        means = ApplyMeans(force=False, as_json=False, rehearse=project.rehearsal)
        apply_saved(PLAN, None, lambda _: (project, documents), means)
    else:
        operations.unlock(project, "p5", quiet)


def request(folder: Path) -> FleetRequest:
    (_, fleet), *_ = load_paths([folder / "p5.yml"]).require().of(Fleet)
    return FleetRequest(fleet, folder)


def told(event: Progress) -> None:
    if isinstance(event, Note):
        tell(event.text)
    elif isinstance(event, EngineStep):
        tell(f"{event.name} {event.phase}")


if __name__ == "__main__":
    run(lambda: main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
