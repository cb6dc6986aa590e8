"""What there is: types, images, stock, quotas, reservations, InfiniBand networks.

Stock counts slices of InfiniBand networks, of which a machine takes one for each GPU, and machines of what
joins none. Source: crusoecloud/terraform-provider-crusoe examples/infiniband/main.tf.
"""

from __future__ import annotations

from orch.rehearsal.crusoe.api.errors import CrusoeError, bad_request, forbidden, over_quota
from orch.rehearsal.crusoe.api.routes import PROJECT, existing, organization, route
from orch.rehearsal.crusoe.data.tables import (
    IMAGES,
    PLENTY,
    TAGS,
    IbNetwork,
    Kind,
    ib_networks,
    kinds,
    locations,
)
from orch.rehearsal.http_service import Answer, Request

# -- how much is left


def _limit(request: Request, kind: Kind, *places: str) -> int | None:
    """Machines that a place has, those that run included; None: no limit."""
    known = request.account.knobs_now().capacity
    keys = [f"{kind.name}@{place}" for place in places] + [kind.name] + [f"*@{place}" for place in places]
    return next((known[key] for key in keys if key in known), None)


def _running(request: Request, kind: Kind, place: str) -> int:
    """Machines of a type that a place holds: an InfiniBand network, or a location."""
    return sum(
        1
        for doc in request.each("instance")
        if doc["type"] == kind.name and place in (doc["_ib_network"], doc["location"]) and doc["_holds"]
    )


def free_slices(request: Request, network: IbNetwork) -> int:
    kind = kinds()[network.kind]
    limit = _limit(request, kind, network.name)
    total = PLENTY if limit is None else limit * kind.slices
    return max(0, total - _running(request, kind, network.id) * kind.slices)


def free_machines(request: Request, kind: Kind, location: str) -> int:
    """Of a type that joins no network here."""
    limit = _limit(request, kind, location)
    return max(0, (PLENTY if limit is None else limit) - _running(request, kind, location))


def quantity(request: Request, kind: Kind, location: str) -> int:
    """What /capacities tells."""
    if not kind.slices:
        return free_machines(request, kind, location)
    of_type = (each for each in ib_networks().values() if (each.kind, each.location) == (kind.name, location))
    return sum(free_slices(request, each) for each in of_type)


# -- quotas


def _gpus(kind: Kind) -> int:
    return kind.gpus or kind.cpus


def in_use(request: Request, quota: str) -> int:
    return sum(
        _gpus(kinds()[doc["type"]]) for doc in request.each("instance") if kinds()[doc["type"]].quota == quota
    )


def quota_error(request: Request, kind: Kind) -> CrusoeError | None:
    limit = request.account.knobs_now().quotas.get(kind.quota)
    if limit is not None and in_use(request, kind.quota) + _gpus(kind) > limit:
        return over_quota(kind.quota, int(limit))
    return None


# -- reservations


def add_reservation(request: Request, name: str, type_name: str, location: str, count: int) -> str:
    """One of `count` machines of a type; its id."""
    kind = kinds()[type_name]
    doc = {
        "id": name,
        "product_line": kind.quota,
        "quantity": count * _gpus(kind),
        "locations": [location],
        "projects": [request.account.identity(PROJECT)],
        "_type": kind.name,
    }
    request.store.put(name, "reservation", location, doc)
    return name


def reservation_has_room(request: Request, name: str, kind: Kind, location: str) -> bool:
    """Whether a machine fits into the reservation that it names. Raises CrusoeError where it may not."""
    doc = existing(request, "reservation", name)
    if doc["_type"] != kind.name or location not in doc["locations"]:
        raise bad_request(f"reservation {name} is not for {kind.name} in {location}")
    return _used(request, name) + _gpus(kind) <= doc["quantity"]


def _used(request: Request, name: str) -> int:
    """Only what runs takes of it."""
    return sum(
        _gpus(kinds()[doc["type"]])
        for doc in request.each("instance")
        if doc["reservation_id"] == name and doc["_holds"]
    )


# -- routes


@route("GET", "/capacities", "listCapacities")
def capacities(request: Request) -> Answer:
    rows = [
        {
            "type": kind.name,
            "location": location,
            "quantity": quantity(request, kind, location),
            "num_slices": kind.slices or 1,
            "quota_type": f"PROJECT_QUOTA_TYPE_{kind.quota.upper()}",
        }
        for kind in kinds().values()
        for location in kind.locations
    ]
    wanted = request.query.get("product_name"), request.query.get("location")
    items = [row for row in rows if wanted[0] in (None, row["type"]) and wanted[1] in (None, row["location"])]
    return Answer(200, {"items": items})


@route("GET", "/locations", "listLocations")
def list_locations(request: Request) -> Answer:
    return Answer(200, {"items": list(locations())})


@route("GET", "/compute/images", "listImages")
def images(request: Request) -> Answer:
    rows = [
        {"id": f"image-{name}", "name": name, "tags": list(TAGS), "locations": list(locations())}
        for name in IMAGES
    ]
    return Answer(200, {"items": rows})


@route("GET", "/projects/{p}/compute/vms/types", "listTypes")
def types(request: Request) -> Answer:
    rows = [
        {
            "product_name": each.name,
            "num_gpu": each.gpus,
            "gpu_type": each.gpu_type,
            "cpu_cores": each.cpus,
            "memory_gb": each.memory_gb,
            "disk_gb": each.disk_gb,
        }
        for each in kinds().values()
    ]
    return Answer(200, {"items": rows})


@route("GET", "/projects/{p}/quotas", "listQuotas")
def quotas(request: Request) -> Answer:
    known = request.account.knobs_now().quotas
    rows = []
    for name in sorted({each.quota for each in kinds().values()}):
        limit, used = int(known.get(name, 100_000)), in_use(request, name)
        rows.append(
            {
                "programmatic_name": name,
                "category": "compute",
                "max": limit,
                "used": used,
                "available": max(0, limit - used),
            }
        )
    return Answer(200, {"quotas": rows})


@route("GET", "/organizations/projects/{p}", "getProject")
def project(request: Request) -> Answer:
    return Answer(
        200,
        {
            "id": request.account.identity(PROJECT),
            "name": "rehearsal",
            "organization_id": organization(request),
        },
    )


@route("GET", "/organizations/{id}/reservations", "listReservations")
def reservations(request: Request) -> Answer:
    if request.id != organization(request):
        raise forbidden()
    rows = [{**doc, "used_quantity": _used(request, doc["id"])} for doc in request.each("reservation")]
    return Answer(200, {"items": rows})


@route("GET", "/projects/{p}/networking/ib-networks", "listIbNetworks")
def list_ib_networks(request: Request) -> Answer:
    rows = [
        {
            "id": each.id,
            "name": each.name,
            "location": each.location,
            "capacities": [{"slice_type": each.kind, "quantity": free_slices(request, each)}],
        }
        for each in ib_networks().values()
    ]
    return Answer(200, {"items": rows})
