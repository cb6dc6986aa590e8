"""The inbound rules of the account: one list, which a call overwrites as a whole.

Source: Lambda Cloud API 1.10, firewallRulesList, firewallRulesSet.
"""

from __future__ import annotations

from orch.rehearsal.http_service import Answer, Request
from orch.rehearsal.lambda_.api.bodies import PutRules, checked
from orch.rehearsal.lambda_.api.errors import invalid
from orch.rehearsal.lambda_.api.routes import route, told
from orch.rehearsal.store import Doc, Store

PATH = "/firewall-rules"
META = "firewall rules"
USUAL: list[Doc] = [
    {
        "protocol": "tcp",
        "port_range": [22, 22],
        "source_network": "0.0.0.0/0",
        "description": "Allow SSH from anywhere",
    },
    {"protocol": "icmp", "source_network": "0.0.0.0/0", "description": "Allow ICMP from anywhere"},
]
"""The rules of an account that nobody has changed. Source: docs.lambda.ai, Firewalls."""


def rules_of(store: Store) -> list[Doc]:
    rules: list[Doc] | None = store.meta(META)
    return USUAL if rules is None else rules


@route("GET", PATH, "firewallRulesList")
def rules(request: Request) -> Answer:
    return told(rules_of(request.store))


@route("PUT", PATH, "firewallRulesSet")
def put(request: Request) -> Answer:
    body = checked(PutRules, request.body)
    for each in body.data:
        if (each.port_range is None) != (each.protocol == "icmp"):
            raise invalid("port_range: not allowed for icmp, and required for the others")
    rows = [each.model_dump(exclude_none=True) for each in body.data]
    request.store.put_meta(META, rows)
    return told(rows)
