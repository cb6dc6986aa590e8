"""`orch preview --untrusted`: what a stranger's fleets would be, without a look at anything but their files.

No project is opened: no state, no keys, no `.orch`; no engine is started, no account, host or name is asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orch.cli.diagnostics import load
from orch.cli.errors import say, tell
from orch.components.forecast import Forecast, outlook
from orch.spec import load_paths
from orch.spec.diagnostics import Diagnostic, render_human
from orch.spec.findings import PlanError
from orch.spec.loader.fence import fence_around
from orch.spec.models import Fleet
from orch.spec.models.project import Project
from orch.stacks.errors import ProjectError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orch.spec import Document
    from orch.spec.models.backends.base import BackendSettings

SCHEMA = 1


def preview(file: str, allowed: Sequence[str], *, as_json: bool) -> None:
    """Tells of each fleet of a file or folder. Raises InvalidConfiguration for what is wrong with any."""
    documents = load(file, untrusted=allowed)
    fleets = [(document, document.model) for document in documents if isinstance(document.model, Fleet)]
    if not fleets:
        raise ProjectError("there is no fleet in it", where=file, hint="a fleet begins with `type: fleet`")
    settings = _settings(file, documents, allowed)
    fence = fence_around(file, frozenset(allowed))
    for document, fleet in fleets:
        doubtful = document.effective()
        try:
            found = outlook(fleet, settings, document.directory.absolute(), fence)
        except PlanError as error:
            raise error.placed(document) from error
        told = (*doubtful, *(finding.placed(document) for finding in found.findings))
        if as_json:
            print(json.dumps(outlook_json(found, told), indent=2, ensure_ascii=False))
            continue
        for line in outlook_lines(found):
            say(line)
        if told:
            tell(render_human(told))


def outlook_lines(found: Forecast) -> list[str]:
    cost = "its price is not known" if found.hourly is None else f"about ${found.hourly:.2f} per hour"
    nodes = f"{found.nodes} node{'' if found.nodes == 1 else 's'}"
    return [
        f"fleet {found.fleet}",
        *(f"  · {line}" for line in found.lines),
        *(f"  not looked at: {each}" for each in found.unseen),
        f"outlook: {nodes} on {found.backend}; {cost}",
    ]


def outlook_json(found: Forecast, told: Sequence[Diagnostic]) -> dict[str, Any]:
    """As a plan's JSON, with what was not looked at; nothing is known of changes."""
    return {
        "schema": SCHEMA,
        "fleet": found.fleet,
        "untrusted": True,
        "backend": found.backend,
        "nodes": found.nodes,
        "reasons": list(found.lines),
        "not_looked_at": list(found.unseen),
        "changes": None,
        "cost": {"hourly": found.hourly, "currency": "USD"},
        "diagnostics": [dict(each.as_dict()) for each in told],
    }


def _settings(
    file: str, documents: Sequence[Document], allowed: Sequence[str]
) -> tuple[BackendSettings, ...]:
    """Backends of the nearest orch.yml upwards in the repository, which is a stranger's too."""
    known = [each.model for each in documents if isinstance(each.model, Project)]
    if not known:
        fence = fence_around(file, frozenset())
        here = Path.cwd() if file == "-" else Path(os.path.abspath(file))
        folders = [each for each in (here, *here.parents) if each == fence.root or fence.root in each.parents]
        names = [each / "orch.yml" for each in folders if fence.holds(each)]
        path = next((each for each in names if each.is_symlink() or each.is_file()), None)
        if path is not None:
            found = load_paths([path], untrusted=allowed).require()
            if found.diagnostics:
                tell(render_human(found.diagnostics))
            known = [model for _, model in found.of(Project)]
    return tuple(backend for project in known for backend in project.configured)
