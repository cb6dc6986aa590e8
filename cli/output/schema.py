"""`orch schema`: JSON Schema for editors."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="fleet, task, dev-environment, volume, project (orch.yml) or a backend; any if not given.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a JSON Schema with which editors complete and check configurations.

    Example: orch schema > .orch.schema.json
    """
    import json

    from orch.spec.schema import kinds, schema
    from orch.spec.suggest import hint_for

    if kind is not None and kind not in kinds():
        hint = hint_for(kind, kinds()) or f"there are: {', '.join(kinds())}"
        raise typer.BadParameter(f"no kind of document is called '{kind}'; {hint}", param_hint="KIND")
    print(json.dumps(schema(kind), indent=2))
