"""The routes of the simulated API, as Newcloud documents them. `machines.py` does the work.

    @route("GET", "/machines/{id}", "getMachine")
    def machine(request: Request) -> Answer:
        return Answer(200, document(found(request)))

A machine as the account stores it has `id`, `name`, `type`, `region`, `status`, `created`, `address` and
`public_address`. A route shows it as the API does, and refuses a body that the API refuses (`Body`).
"""

from __future__ import annotations

from collections.abc import Sequence

from orch.rehearsal.http_service import Routes
from orch.rehearsal.newcloud.api.errors import NewcloudError, no_method, not_there


def _missing(methods: Sequence[str]) -> NewcloudError:
    return no_method() if methods else not_there("the path")


route = Routes("orch.rehearsal.newcloud.api", ("routes",), _missing, prefix="/v1")

SHOWS = frozenset[str]()
"""The actions of routes that tell what became of machines, such as `getMachine`."""
