"""The routes of the simulated API, as Nimbus documents them. `machines.py` does the work.

    @route("GET", "/machines/{id}", "getMachine")
    def machine(request: Request) -> Answer:
        return Answer(200, document(found(request)))

A machine as the account stores it has `id`, `name`, `type`, `region`, `status`, `created`, `address` and
`public_address`. A route shows it as the API does, and refuses a body that the API refuses (`Body`).
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.rehearsal.http_service import Answer, Body, Request, Routes, validated
from orch.rehearsal.store import Doc
from orch_nimbus.rehearsal.api.errors import NimbusError, invalid, no_method, not_there
from orch_nimbus.rehearsal.api.machines import ended, found, free, launched, there
from orch_nimbus.rehearsal.data.tables import IMAGES, kinds, regions


def _missing(methods: Sequence[str]) -> NimbusError:
    return no_method() if methods else not_there("the path")


route = Routes("orch_nimbus.rehearsal.api", ("routes",), _missing, prefix="/v1")

SHOWS = frozenset({"listServers", "getServer"})
"""The actions of routes that tell what became of machines, such as `getMachine`."""

STATES = {"starting": "BOOT", "running": "ON", "failed": "BROKEN", "gone": "OFF"}


class Create(Body):
    label: str
    plan: str
    region: str
    image: str
    cloud_init: str
    allow_ssh: list[str]


def server(doc: Doc) -> Doc:
    return {
        "id": doc["id"],
        "label": doc["name"],
        "plan": doc["type"],
        "region": doc["region"],
        "state": STATES[doc["status"]],
        "net": {"private": doc["address"] or None, "public": doc["public_address"] or None},
        "made": doc["created"],
    }


@route("GET", "/servers", "listServers")
def list_servers(request: Request) -> Answer:
    return Answer(200, {"servers": [server(doc) for doc in there(request)]})


@route("GET", "/servers/{id}", "getServer")
def get_server(request: Request) -> Answer:
    return Answer(200, {"server": server(found(request))})


@route("POST", "/servers", "createServer")
def create_server(request: Request) -> Answer:
    body = validated(Create, request.body, lambda lines: invalid("; ".join(lines)))
    doc = launched(request, body.label, body.plan, body.region, body.cloud_init)
    return Answer(201, {"server": server(doc)})


@route("DELETE", "/servers/{id}", "deleteServer")
def delete_server(request: Request) -> Answer:
    ended(request, found(request))
    return Answer(204)


@route("GET", "/plans", "listPlans")
def list_plans(request: Request) -> Answer:
    rows = [
        {
            "name": kind.name,
            "disk_gib": kind.disk_gib,
            "free_in": [region for region in kind.regions if free(request, kind, region)],
        }
        for kind in kinds().values()
    ]
    return Answer(200, {"plans": rows})


@route("GET", "/images", "listImages")
def list_images(request: Request) -> Answer:
    if request.query.get("region") not in regions():
        raise invalid("region")
    return Answer(200, {"images": [{"id": f"img-{name}", "name": name} for name in IMAGES]})
