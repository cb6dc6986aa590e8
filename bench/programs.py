"""What `cluster.py` measures on each cloud: a fleet, and a Pulumi program of as many instances."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measurement:
    """A fleet of one cloud, and a program of as many instances registered by hand.

    `program` takes `nodes`, and in `data` what its instances start with; `shown`: where an instance's outputs
    repeat that. `sdk`: what any program does that is about to ask the cloud; it has a `project`.
    """

    name: str
    fleet: str
    knobs: str
    program: str
    data: str
    shown: Callable[[Mapping[str, Any]], str]
    sdk: str

    def written(self, nodes: int) -> str:
        """The fleet's file."""
        return self.fleet.format(nodes=nodes)

    def by_hand(self, nodes: int, text: str | None = None) -> str:
        """The program; `text` is what its instances start with, None: nothing."""
        data = "" if text is None else self.data.format(text=text, text64=b64encode(text.encode()).decode())
        return self.program.format(nodes=nodes, data=data)


AWS = Measurement(
    "aws",
    """\
type: fleet
name: bench
backends: [aws]
regions: [us-east-1]
placement: cluster
nodes: {nodes}
resources: {{gpu: "H100:8"}}
""",
    "nodes: null\nquotas: {L-417A185B: 1000000, L-DF5E4CA3: 1000000}\n",
    '''\
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
], {data}opts=opts)
for index in range({nodes}):
    aws.ec2.Instance(
        f"node-{{index}}", ami="ami-00a1c814e3f0a1cf7", instance_type="p5.48xlarge",
        launch_template={{"id": template.id, "version": "$Latest"}}, tags={{"Name": f"node-{{index}}"}},
        opts=opts,
    )
''',
    "user_data={text64!r}, ",
    lambda outputs: str(outputs["userData"]),
    """\
import boto3
for service in ("ec2", "sts", "ssm", "service-quotas"):
    project.session("aws").client(service, region_name="us-east-1")
""",
)

GCP = Measurement(
    "gcp",
    """\
type: fleet
name: bench
backends: [gcp]
regions: [us-central1]
placement: cluster
nodes: {nodes}
instance_types: [a3-megagpu-8g]
""",
    "nodes: null\nquotas: {NVIDIA_H100_MEGA_GPUS: 1000000, NVIDIA_H100_GPUS: 1000000, "
    "GPUS_ALL_REGIONS: 1000000, NETWORKS: 100}\n",
    '''\
"""As many instances of one template, registered by hand, each in as many networks as its type has cards."""

import pulumi
import pulumi_gcp as gcp

opts = pulumi.ResourceOptions(provider=gcp.Provider("gcp", project="orch-rehearsal", region="us-central1"))
nets = [gcp.compute.Network(f"net-{{n}}", auto_create_subnetworks=False, opts=opts) for n in range(9)]
subnets = [
    gcp.compute.Subnetwork(
        f"subnet-{{n}}", network=net.id, ip_cidr_range=f"10.{{n}}.0.0/17", region="us-central1", opts=opts
    )
    for n, net in enumerate(nets)
]
template = gcp.compute.InstanceTemplate(
    "template", machine_type="a3-megagpu-8g",
    disks=[{{"source_image": "projects/cos-cloud/global/images/family/cos-105-lts", "boot": True}}],
    scheduling={{"on_host_maintenance": "TERMINATE"}},
    network_interfaces=[{{"subnetwork": subnet.id}} for subnet in subnets], {data}opts=opts,
)
for index in range({nodes}):
    gcp.compute.InstanceFromTemplate(
        f"node-{{index}}", zone="us-central1-a", source_instance_template=template.self_link_unique,
        opts=opts,
    )
''',
    'metadata={{"user-data": {text!r}}}, ',
    lambda outputs: str(outputs["metadata"]["user-data"]),
    "import google.cloud.compute_v1",
)
MEASUREMENTS = (AWS, GCP)
