"""Properties that the language has and this version does not act on.

Each row is refused with ORCH118 (ORCH201 for what needs a driver that is not there): accepting a property
and doing nothing with it would be a lie. A row leaves this table when a model gains the property. The text
says what to do instead.
"""

from __future__ import annotations

_LOCAL = "this version creates local nodes, which have none"
_OFFER = "this version creates local nodes only, there is nothing to choose from"

FLEET: dict[str, str | None] = {
    "regions": _OFFER,
    "region": _OFFER,
    "availability_zones": _OFFER,
    "zones": _OFFER,
    "instance_types": _OFFER,
    "spot_policy": _OFFER,
    "max_price": _OFFER,
    "reservation": _OFFER,
    "retry": None,
    "backend_options": None,
    "network": "the network of local nodes is created with them",
    "os_image": _LOCAL,
    "init": "put the steps into the job's image or `commands`",
    "mounts": "use `volumes` of the task",
    "scratch": _LOCAL,
    "health": None,
    "topology": None,
    "gang": None,
    "ttl": "delete the fleet with `orch down`",
    "budget": _LOCAL,
    "partitions": "name the fleet in the task's `fleets`",
    "tags": _LOCAL,
}

TASK: dict[str, str | None] = {
    "python": "name an `image` that holds it",
    "nvcc": "name an `image` that holds it",
    "docker": None,
    "registry_auth": "log in on the machine beforehand, or use an image that needs no login",
    "repos": "copy what is needed with `files`",
    "ports": None,
    "groups": None,
    "array": None,
    "instances": "choose with `fleets`",
    "exclude_nodes": None,
    "backends": _OFFER,
    "backend": _OFFER,
    "regions": _OFFER,
    "region": _OFFER,
    "availability_zones": _OFFER,
    "zones": _OFFER,
    "instance_types": _OFFER,
    "reservation": _OFFER,
    "max_price": _OFFER,
    "spot_policy": _OFFER,
    "tags": None,
    "idle_duration": None,
    "creation_policy": None,
    "preempt": None,
    "retry": None,
    "signal": None,
    "checkpoint": None,
    "utilization_policy": None,
    "schedule": None,
    "depends_on": None,
    "singleton": None,
    "priority": None,
}

PROJECT: dict[str, str | None] = {
    "policies": None,
    "profiles": None,
    "tags": None,
    "projects": "write the `local` backend under `backends`",
    "defaults.fleet": "write the property in the fleet",
    "defaults.task": "write the property in the task",
    "backends[].engine": None,
    "backends[].subnet": None,
    "backends[].cpus": "limit nodes with `resources` of the fleet",
    "backends[].memory": "limit nodes with `resources` of the fleet",
    "backends[].gpus": None,
    "backends[].simulate_gpu": None,
}

ROWS = {"fleet": FLEET, "task": TASK, "project": PROJECT}

# Accepted for the sake of existing files; they do nothing (ORCH191).
IDLE = {"task": ("dstack", "setup", "home_dir"), "fleet": (), "project": ()}

# Values of `type` that are known and not read here.
NOT_RUN = {
    "service": ("services need an always-on proxy: not supported", "use a task, or Kubernetes"),
    "gateway": ("gateways need an always-on proxy: not supported", "use a task, or Kubernetes"),
    "preset": ("presets are part of services: not supported", "use a task, or Kubernetes"),
}
NOT_YET = ("dev-environment", "volume")
