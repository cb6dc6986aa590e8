"""The serial consoles of instances. Sources: rehearsal/README.md, "Launch"."""

from __future__ import annotations

import base64

from orch.rehearsal.aws.api.actions import Request, action, stamp
from orch.rehearsal.aws.api.compute.capacity import live, state_of
from orch.rehearsal.nodes.user_data import host_seed, public_key, shows_host_key
from orch.rehearsal.store import Doc

CONSOLE_BYTES = 65_536
"""EC2 stores this much output of a console."""

KEYS_BEGIN = "-----BEGIN SSH HOST KEY KEYS-----"
KEYS_END = "-----END SSH HOST KEY KEYS-----"


@action("GetConsoleOutput")
def get_console_output(request: Request) -> Doc:
    """The serial output of a machine so far, in base64. Only machines of the Nitro system have `Latest`."""
    doc = live(request, request["InstanceId"])
    text = ""
    user_data = request.store.get(f"user-data {doc['InstanceId']}")
    if state_of(request, doc) != "pending":
        text = "[    0.000000] Linux version 6.8.0-1029-aws\r\n"
        if user_data and shows_host_key(base64.b64decode(user_data["Value"])):
            seed = host_seed(request.cloud.seed, doc["InstanceId"])
            text += f"\r\n{KEYS_BEGIN}\r\n{public_key(seed)} root@{_host(doc)}\r\n{KEYS_END}\r\n"
    return {
        "InstanceId": doc["InstanceId"],
        "Output": base64.b64encode(text.encode()[-CONSOLE_BYTES:]).decode(),
        "Timestamp": stamp(request.cloud.now()),
    }


def _host(doc: Doc) -> str:
    return str(doc["PrivateDnsName"]).partition(".")[0]
