"""A fleet of 1,000 AWS nodes on the simulated account, against a bare Pulumi program of as many resources.

Both talk to the same simulated provider and engine, so what differs is our program. ORCHCTL_BENCH_NODES sets
another number of nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BIN, Figure
from orch.rehearsal.project import rehearse
from orch.stacks.project import find
from orch.stacks.pulumi import install as engines
from orch.stacks.state import project_file

NODES = int(os.environ.get("ORCHCTL_BENCH_NODES", "1000"))

KNOBS = "nodes: null\nquotas: {L-417A185B: 1000000, L-DF5E4CA3: 1000000}\n"

FLEET = f"""\
type: fleet
name: bench
backends: [aws]
regions: [us-east-1]
placement: cluster
nodes: {NODES}
resources: {{gpu: "H100:8"}}
"""

COMPILE = """\
import sys, time
from pathlib import Path
from orch.spec import load_paths
from orch.stacks.project import find
from orch.rehearsal.project import rehearse
from orch.stacks.request import FleetRequest, compile_for
from orch.stacks.state import StackState

project = rehearse(find(Path.cwd())).project
for _ in range(2):  # with the cloud's SDK and the catalogue to be read, and without
    started = time.process_time()
    fleet = load_paths(["fleet.yml"]).require().fleets[0]
    compile_for(StackState(project, fleet.name), FleetRequest(fleet, Path.cwd()))
    print(time.process_time() - started)
"""

BARE = f'''\
"""As many instances of one launch template, registered by hand."""

import pulumi
import pulumi_aws as aws

opts = pulumi.ResourceOptions(provider=aws.Provider("aws", region="us-east-1"))
vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", opts=opts)
subnet = aws.ec2.Subnet(
    "subnet", vpc_id=vpc.id, cidr_block="10.0.0.0/17", availability_zone="us-east-1a", opts=opts
)
template = aws.ec2.LaunchTemplate("template", network_interfaces=[
    {{"network_card_index": card, "device_index": 1 if card else 0, "subnet_id": subnet.id,
     "interface_type": "efa-only" if card else "interface"}} for card in range(32)
], opts=opts)
for index in range({NODES}):
    aws.ec2.Instance(
        f"node-{{index}}", ami="ami-00a1c814e3f0a1cf7", instance_type="p5.48xlarge",
        launch_template={{"id": template.id, "version": "$Latest"}}, tags={{"Name": f"node-{{index}}"}},
        opts=opts,
    )
'''


@dataclass(frozen=True)
class Measured:
    """Seconds of a command, those of CPU of all its processes, and the most memory of one of them."""

    seconds: float
    cpu: float
    mib: int
    out: str


def measured(words: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> Measured:
    """A command that must succeed, its children's memory included as far as they were waited for."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        out.seek(0)
        text = out.read()
    if status:
        sys.exit(f"{' '.join(words)} failed:\n{text[-3000:]}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10, text)


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        mine, bare = Path(name) / "mine", Path(name) / "bare"
        for folder in (mine, bare):
            (folder / ".orch" / "rehearsal").mkdir(parents=True)
            (folder / ".orch" / "rehearsal" / "knobs.yml").write_text(KNOBS)
            (folder / "orch.yml").write_text(f"project: bench-{folder.name}\n")
        (mine / "fleet.yml").write_text(FLEET)
        (bare / "Pulumi.yaml").write_text(project_file("bench-bare", ".orch/rehearsal/config"))
        (bare / "__main__.py").write_text(BARE)
        rehearsal = rehearse(find(bare))
        project, _ = rehearsal.project, rehearsal.cloud  # the account is made when it is asked for
        engine = engines.require()
        env = {**os.environ, **project.environment(engine)}
        orch = [str(BIN / "orch")]
        pulumi = [str(engine.command), "--non-interactive"]
        measured([*pulumi, "stack", "init", "bare"], cwd=bare, env=env)

        compiled = measured([sys.executable, "-c", COMPILE], cwd=mine)
        first, again = map(float, compiled.out.split()[-2:])
        print(
            f"  compile alone, {NODES} nodes: {first:.2f} s of CPU with SDK and catalogue to be read, "
            f"{again:.2f} s after that, {compiled.mib} MiB at most",
            flush=True,
        )
        on = ["--stack", "bare"]
        steps = (
            ("preview of a new fleet", ["preview", "fleet.yml"], ["preview", *on]),
            ("up", ["up", "fleet.yml", "--yes"], ["up", "--yes", "--skip-preview", *on]),
            ("preview without changes", ["preview", "fleet.yml"], ["preview", "--refresh", *on]),
        )
        for what, ours, theirs in steps:
            first = measured([*orch, *ours, "--rehearse"], cwd=mine)
            second = measured([*pulumi, *theirs], cwd=bare, env=env)
            print(
                f"  {what}: {first.mib} MiB at most against {second.mib} MiB, "
                f"{first.cpu:.1f} s of CPU against {second.cpu:.1f} s: {first.cpu / second.cpu:.2f} times",
                flush=True,
            )
            yield Figure(
                f"{what}, {NODES} nodes",
                (first.seconds,),
                (second.seconds,),
                "`pulumi` and a bare program of as many instances",
                2.0,
            )
