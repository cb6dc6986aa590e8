"""What a rehearsed node's cloud announces of it: the node's metadata service tells it, as the cloud's does.

Sources: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations",
"Scheduled events for your instances"; Compute Engine documentation, "Spot VMs", "Query metadata server for
maintenance event notices".
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from orch.rehearsal.account import SimulatedAccount, SimulationError

Kind = Literal["spot", "maintenance", "rebalance"]

AHEAD_S: Mapping[str, Mapping[str, float]] = {
    "aws": {"spot": 120.0, "maintenance": 3600.0, "rebalance": 600.0},
    "gcp": {"spot": 30.0, "maintenance": 3600.0},
}
"""How long before the machine goes its cloud announces it, by cloud."""

READS_NOTICES = "/var/lib/orch/notices.sh"
"""A script in user data. The node runs it, as the service manager of a real machine does."""

_FOLDER = "/run/orch-metadata"
_TOOLS = "/run/orch-notices"
# Images of clouds have curl, the node image has none: this one asks what that script asks.
_ASK = """\
#!/bin/bash
# curl -s -i -m SECONDS -X METHOD -H HEADER http://ADDRESS/PATH
address=${9#http://}
ask='exec 3<>"/dev/tcp/$1/80" && printf "%s %s HTTP/1.0\\r\\n%s\\r\\n\\r\\n" "$2" "$3" "$4" >&3 && cat <&3'
exec timeout "$4" bash -c "$ask" ask "${address%%/*}" "$6" "/${address#*/}" "$8" 2>/dev/null
"""
_LATEST = "latest/meta-data"
_INSTANCE = "computeMetadata/v1/instance"


def documents(cloud: str, kind: Kind, at: float) -> dict[str, str]:
    """Path -> text of what the metadata service of a cloud has while this is announced for the time `at`."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    if cloud == "gcp":
        event = "TERMINATE_ON_HOST_MAINTENANCE" if kind == "maintenance" else "NONE"
        return {
            f"{_INSTANCE}/preempted": "TRUE" if kind == "spot" else "FALSE",
            f"{_INSTANCE}/maintenance-event": event,
        }
    if kind == "spot":
        return {f"{_LATEST}/spot/instance-action": json.dumps({"action": "terminate", "time": when})}
    if kind == "rebalance":
        return {f"{_LATEST}/events/recommendations/rebalance": json.dumps({"noticeTime": when})}
    event = {
        "NotBefore": time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(at)),
        "Code": "instance-retirement",
        "Description": "The instance is running on degraded hardware",
        "EventId": "instance-event-0d59937288b749b32",
        "State": "active",
    }
    return {f"{_LATEST}/events/maintenance/scheduled": json.dumps([event], indent=1)}


def watch(container: str, script: bytes) -> None:
    """Run the script that reads notices. Until there are some nobody answers: no question leaves the node."""
    from orch.images.client import connect
    from orch.providers.orch.containers import archive

    node: Any = connect().containers.get(container)
    node.put_archive("/", archive({READS_NOTICES.lstrip("/"): script.decode(), f"{_TOOLS}/curl"[1:]: _ASK}))
    node.exec_run(["sh", "-c", f"chmod 755 {_TOOLS}/curl; ip addr add 169.254.169.254/32 dev lo 2>/dev/null"])
    node.exec_run(["sh", "-c", f"PATH=$PATH:{_TOOLS} exec bash {READS_NOTICES}"], detach=True)


def announce(cloud: SimulatedAccount, instance: str, kind: Kind, ahead_s: float) -> None:
    """Have the metadata service of an instance's node announce that the machine goes in `ahead_s` seconds."""
    from orch.images.client import connect
    from orch.providers.orch.containers import archive

    endpoint = cloud.endpoints().get(instance)
    if endpoint is None:
        raise SimulationError(
            f"instance {instance} has no node that could be told",
            where=str(cloud.path),
            hint="`show endpoint` lists those that have; they need the knob `nodes`",
        )
    if kind not in AHEAD_S[cloud.name]:
        raise SimulationError(f"{cloud.name} announces no {kind}")
    node: Any = connect().containers.get(endpoint.container)
    texts = documents(cloud.name, kind, cloud.now() + ahead_s)
    service = Path(__file__).with_name("metadata_service.py").read_text()
    files = {f"{_FOLDER}/{path}": text for path, text in texts.items()} | {f"{_FOLDER}.py": service}
    node.exec_run(["rm", "-rf", _FOLDER])
    node.put_archive("/", archive({path.lstrip("/"): text for path, text in files.items()}))
    # A second notice finds it at work.
    node.exec_run(["python3", f"{_FOLDER}.py", cloud.name, _FOLDER], detach=True)
