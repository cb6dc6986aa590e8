"""The FleetState of an AWS fleet: the plan, joined with the values that EC2 assigned. Pure.

A node without a public address is reached through Session Manager (SSM), by the AWS command line with the
credentials that made the fleet: the state holds the command, the caller's environment the credentials.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orch.components.aws.plan import AwsPlan
from orch.components.cloud.machines import fleet_state as cloud_state
from orch.components.cloud.machines.host_keys import HostKey
from orch.components.cloud.machines.ssh_access import command, with_environment
from orch.spec.models.backends.aws import AwsSettings
from orch.spec.models.backends.credentials import AccessKeyCreds, AwsDefaultCreds

# A node that is gone may be a reboot: EC2 takes minutes for it.
UNREACHABLE_GRACE_S = 300.0

# Variables that the command line prefers to the keys.
_OVERRIDING_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
_KEY_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "ORCH_AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY": "ORCH_AWS_SECRET_ACCESS_KEY",
}


@dataclass(frozen=True)
class FleetOutputs:
    """What EC2 assigned to the resources of a fleet. One entry per node each, in order of the nodes.

    `host_keys`: None for an instance that has shown none: it is not a node yet. `public`: empty where SSH
    uses the internal addresses. `topology`: network nodes above each node, the outermost first.
    `bastion`: its id and address.
    """

    seed: str
    ids: Sequence[str]
    host_keys: Sequence[HostKey | None]
    internal: Sequence[str]
    public: Sequence[str]
    topology: Sequence[Sequence[str]]
    bastion: tuple[str, str] | None


def fleet_state(plan: AwsPlan, settings: AwsSettings, stack: str, outputs: FleetOutputs) -> dict[str, Any]:
    """All that a runner needs, as `spec.state.FleetState` reads it."""
    jumps = _jumps(plan, settings, outputs)
    ssm = plan.access.way == "ssm"
    addresses = outputs.public if plan.access.way == "direct" else outputs.internal
    groups = {node.name: group for group in plan.node_groups for node in group.nodes}
    nodes = [
        cloud_state.node_state(
            groups[node.name],
            node,
            key,
            cloud_state.Route(
                addresses[position],
                outputs.internal[position],
                jumps,
                ssm_command(plan.region, settings, outputs.ids[position]) if ssm else None,
            ),
            topology=outputs.topology[position] if outputs.topology else (),
            disk_gb=groups[node.name].disk.size_gb,
            reservation=groups[node.name].capacity.id,
        )
        for position, (node, key) in enumerate(zip(plan.all_nodes, outputs.host_keys, strict=True))
        if key is not None
    ]
    return cloud_state.fleet_state(plan, stack, nodes, backend="aws", grace_s=UNREACHABLE_GRACE_S)


def _jumps(plan: AwsPlan, settings: AwsSettings, outputs: FleetOutputs) -> list[dict[str, Any]]:
    if plan.bastion is None or outputs.bastion is None:
        return cloud_state.given_jumps(plan.access.jumps)
    instance, address = outputs.bastion
    tunnel = None if plan.bastion.public else ssm_command(plan.region, settings, instance)
    return [cloud_state.bastion_jump(plan, outputs.seed, address, tunnel)]


def ssm_command(region: str, settings: AwsSettings, instance: str) -> str:
    """A command whose standard streams are the SSH port of an instance, through SSM.

    The command itself assumes a role, each time: the credentials of a role end after an hour.
    """
    creds = settings.creds
    default = creds if isinstance(creds, AwsDefaultCreds) else AwsDefaultCreds()
    profile = ["--profile", default.profile] if default.profile else []
    before = ["aws", "ssm", "start-session", "--region", region]
    after = ["--target", instance, "--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=22"]
    if isinstance(creds, AccessKeyCreds):
        return with_environment([*before, *after], _KEY_VARIABLES, _OVERRIDING_VARIABLES)
    if default.role_arn is None:
        return command([*before, *profile, *after])
    assume = ["aws", "sts", "assume-role", "--region", region, *profile, "--role-arn", default.role_arn]
    assume += ["--role-session-name", "orch", "--output", "text"]
    assume += ["--query", "Credentials.[AccessKeyId,SecretAccessKey,SessionToken]"]
    script = (
        f"keys=$({shlex.join(assume)} </dev/null) || exit 1; set -f; set -- $keys; "
        f"unset {' '.join(_OVERRIDING_VARIABLES)}; "
        'export AWS_ACCESS_KEY_ID="$1" AWS_SECRET_ACCESS_KEY="$2" AWS_SESSION_TOKEN="$3"; '
        f"exec {shlex.join([*before, *after])}"
    )
    return command(["sh", "-c", script])


def tunnel_environment(settings: AwsSettings) -> dict[str, str]:
    """The environment variables that `ssm_command` needs on this machine."""
    creds = settings.creds
    if not isinstance(creds, AccessKeyCreds):
        return {}
    return dict(zip(_KEY_VARIABLES.values(), (creds.access_key, creds.secret_key), strict=True))
