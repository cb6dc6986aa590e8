"""`orch --help` and `orch up --help` against those of a bare Typer app with as many verbs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import BIN, Figure, side_by_side, timed

RUNS = 15
VERB = '@app.command("verb{i}")\ndef verb{i}(file: str, flag: bool = False) -> None:\n    """Does {i}."""\n\n'


def figures() -> Iterator[Figure]:
    from orch.cli.verbs import VERBS

    verbs = len(VERBS)
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        commands = "".join(VERB.format(i=i) for i in range(verbs))
        bare.write_text(f"import typer\n\napp = typer.Typer(add_completion=False)\n\n\n{commands}app()\n")
        # A verb's help loads its module, as completing its options does; Typer loads pydantic there.
        for verb, its in ((), ()), (("up",), ("verb0",)):
            ours, theirs = side_by_side(
                lambda words=verb: timed([str(BIN / "orch"), *words, "--help"]),
                lambda words=its: timed([sys.executable, str(bare), *words, "--help"]),
                RUNS,
            )
            name = " ".join(("orch", *verb, "--help"))
            yield Figure(name, tuple(ours), tuple(theirs), f"a bare Typer app with {verbs} verbs", 1.5)
