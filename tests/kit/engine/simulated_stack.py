"""A small AWS program of the tests' own, in the real engine on a simulated account."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kit import TESTS

from orch.rehearsal.aws.account import Cloud
from orch.rehearsal.aws.data.tables import image_id
from orch.rehearsal.project import Rehearsal, rehearse
from orch.stacks.engine import install as engines
from orch.stacks.engine.process import Event, ProcessResult, call
from orch.stacks.project.project import find

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        ],
    }
)
IMAGE = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261105"


@dataclass(frozen=True)
class Wanted:
    """What the program asks for."""

    nodes: int = 2
    type: str = "p5.48xlarge"
    region: str = "us-east-1"
    http_tokens: str = "required"
    tags: dict[str, str] = field(default_factory=dict)
    ssh_from: tuple[str, ...] = ()
    adopt: str | None = None
    """An instance that node 0 is to be imported from."""


def program(wanted: Wanted) -> Callable[[], None]:
    """A cluster of p5: network, role, placement group, reservation, template with 33 interfaces, nodes."""

    def run() -> None:
        import pulumi
        import pulumi_aws as aws

        zone = f"{wanted.region}a"
        provider = aws.Provider("aws", region=wanted.region, default_tags={"tags": {"orch:stack": "tests"}})
        o = pulumi.ResourceOptions(provider=provider)
        vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", enable_dns_hostnames=True, opts=o)
        gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id, opts=o)
        public = aws.ec2.Subnet(
            "public", vpc_id=vpc.id, cidr_block="10.0.0.0/24", availability_zone=zone, opts=o
        )
        private = aws.ec2.Subnet(
            "private", vpc_id=vpc.id, cidr_block="10.0.16.0/20", availability_zone=zone, opts=o
        )
        address = aws.ec2.Eip(
            "nat", domain="vpc", opts=pulumi.ResourceOptions(provider=provider, depends_on=[gateway])
        )
        nat = aws.ec2.NatGateway("nat", allocation_id=address.id, subnet_id=public.id, opts=o)
        to_world = [{"cidr_block": "0.0.0.0/0", "gateway_id": gateway.id}]
        outside = aws.ec2.RouteTable("public", vpc_id=vpc.id, routes=to_world, opts=o)
        inside = aws.ec2.RouteTable("private", vpc_id=vpc.id, opts=o)
        aws.ec2.Route(
            "private",
            route_table_id=inside.id,
            destination_cidr_block="0.0.0.0/0",
            nat_gateway_id=nat.id,
            opts=o,
        )
        aws.ec2.RouteTableAssociation("public", route_table_id=outside.id, subnet_id=public.id, opts=o)
        aws.ec2.RouteTableAssociation("private", route_table_id=inside.id, subnet_id=private.id, opts=o)
        everything = {"protocol": "-1", "from_port": 0, "to_port": 0}
        ssh = [
            {"protocol": "tcp", "from_port": 22, "to_port": 22, "cidr_blocks": [cidr]}
            for cidr in wanted.ssh_from
        ]
        group = aws.ec2.SecurityGroup(
            "nodes",
            vpc_id=vpc.id,
            ingress=[{**everything, "self": True}, *ssh],
            egress=[{**everything, "cidr_blocks": ["0.0.0.0/0"]}],
            opts=o,
        )
        role = aws.iam.Role("node", assume_role_policy=TRUST, opts=o)
        policy = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
        aws.iam.RolePolicyAttachment("node", role=role.name, policy_arn=policy, opts=o)
        profile = aws.iam.InstanceProfile("node", role=role.name, opts=o)
        placement = aws.ec2.PlacementGroup("cluster", strategy="cluster", opts=o)
        reservation = aws.ec2.CapacityReservation(
            "gang",
            availability_zone=zone,
            instance_type=wanted.type,
            instance_platform="Linux/UNIX",
            instance_count=wanted.nodes,
            instance_match_criteria="targeted",
            placement_group_arn=placement.arn,
            opts=o,
        )
        place = {"subnet_id": private.id, "security_groups": [group.id]}
        alone = {**place, "interface_type": "efa-only"}
        template = aws.ec2.LaunchTemplate(
            "node",
            image_id=image_id(wanted.region, IMAGE),
            instance_type=wanted.type,
            network_interfaces=[
                {**place, "device_index": 0, "network_card_index": 0, "associate_public_ip_address": "false"},
                {**alone, "device_index": 1, "network_card_index": 0},
                *({**alone, "device_index": 0, "network_card_index": card} for card in range(1, 32)),
            ],
            iam_instance_profile={"name": profile.name},
            placement={"group_name": placement.name},
            capacity_reservation_specification={
                "capacity_reservation_target": {"capacity_reservation_id": reservation.id}
            },
            block_device_mappings=[
                {"device_name": "/dev/sda1", "ebs": {"volume_size": 100, "delete_on_termination": "true"}}
            ],
            metadata_options={"http_tokens": wanted.http_tokens},
            update_default_version=True,
            opts=o,
        )
        for number in range(wanted.nodes):
            adopt = wanted.adopt if number == 0 else None
            node = aws.ec2.Instance(
                f"node-{number}",
                launch_template={"id": template.id, "version": template.latest_version.apply(str)},
                user_data=pulumi.Output.secret(f"#cloud-config\n# node {number}\n"),
                tags={"Name": f"node-{number}", **wanted.tags},
                opts=pulumi.ResourceOptions(provider=provider, import_=adopt),
            )
            pulumi.export(f"ip{number}", node.private_ip)

    return run


@dataclass
class Done:
    """One engine call: how it ended, and the steps it took or planned."""

    finished: ProcessResult
    events: list[Event]

    @property
    def text(self) -> str:
        return self.finished.stdout + self.finished.stderr

    def steps(self, phase: str = "resourcePreEvent") -> Counter[str]:
        return Counter(
            event[phase]["metadata"]["op"]
            for event in self.events
            if phase in event and not event[phase]["metadata"]["type"].startswith("pulumi:")
        )

    def changed(self) -> dict[str, list[str]]:
        """Resource -> paths that differ, of what is not the same."""
        found: dict[str, set[str]] = {}
        for event in self.events:
            data = event.get("resourcePreEvent", {}).get("metadata")
            if data and data["op"] not in ("same", "create", "delete", "refresh", "read"):
                name = data["urn"].rsplit("::", 1)[-1]
                found.setdefault(name, set()).update(data.get("detailedDiff") or {})
        return {name: sorted(paths) for name, paths in found.items()}

    @property
    def errors(self) -> str:
        found = [event["diagnosticEvent"]["message"] for event in self.events if "diagnosticEvent" in event]
        return "\n".join(found)


@dataclass
class SimulatedStack:
    """The program's stack in a rehearsal of its own."""

    rehearsal: Rehearsal
    folder: Path

    @classmethod
    def make(cls, path: Path) -> SimulatedStack:
        (path / "orch.yml").write_text("project: tests\n")
        rehearsal = rehearse(find(path), nodes=False)
        rehearsal.project.cloud("aws")  # an account is there once it is asked for
        folder = rehearsal.project.dot / "work" / "t"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Pulumi.yaml").write_text("name: tests\nruntime: python\n")
        made = cls(rehearsal, folder)
        assert made.call("stack", "init", "t").finished.code == 0
        return made

    @classmethod
    def of(cls, path: Path) -> SimulatedStack:
        """The one that is there."""
        rehearsal = rehearse(find(path), nodes=False)
        return cls(rehearsal, rehearsal.project.dot / "work" / "t")

    @property
    def cloud(self) -> Cloud:
        return self.rehearsal.cloud

    def call(self, *words: str, program: Callable[[], object] | None = None) -> Done:
        engine = engines.require()
        events: list[Event] = []
        stack = [] if words[0] == "stack" else ["--stack", "t"]
        done = call(
            engine,
            [*words, *stack],
            folder=self.folder,
            environment=self.rehearsal.project.environment(engine),
            program=program,
            on_event=events.append if words[0] in {"preview", "up", "destroy", "refresh"} else None,
        )
        return Done(done, events)

    def preview(self, wanted: Wanted, *words: str) -> Done:
        return self.call("preview", *words, program=program(wanted))

    def up(self, wanted: Wanted, *words: str) -> Done:
        return self.call("up", "--yes", "--skip-preview", *words, program=program(wanted))

    def up_apart(self, wanted: Wanted) -> tuple[int, str]:
        """`up` in a process of its own, for an engine that will be killed: the SDK does not survive that."""
        words = [sys.executable, __file__, str(self.rehearsal.project.root), json.dumps(asdict(wanted))]
        tests = str(TESTS)
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": tests}, capture_output=True, check=False
        )
        return done.returncode, done.stdout.decode()

    def destroy(self) -> Done:
        return self.call("destroy", "--yes", "--skip-preview")


if __name__ == "__main__":
    ended = SimulatedStack.of(Path(sys.argv[1])).up(Wanted(**json.loads(sys.argv[2])))
    print(ended.errors, flush=True)
    # Without the interpreter's own end: threads of a server whose engine was killed would be waited for.
    os._exit(1 if ended.finished.code else 0)
