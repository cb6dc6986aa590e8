"""`orch validate` of 200 files against pydantic alone on the mappings they hold, and against a bare script.

The first ratio is what reading YAML with positions, references and checks cost on top of validation that has
the mappings at hand; the second is what starting up costs, no cloud SDK among it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from bench.measure import BIN, ROOT, Figure, side_by_side, timed

FILES = 200
RUNS = 9
SEEDS = ROOT / "tests" / "spec" / "good" / "examples"
HEAVY = ("pulumi", "boto3", "google", "kubernetes", "fabric", "paramiko", "docker", "sqlalchemy", "jinja2")

BARE = """import sys
import typer
import yaml
from pydantic import BaseModel


class Document(BaseModel):
    type: str
    name: str


def main(path: str) -> None:
    for each in yaml.load_all(open(path), yaml.CSafeLoader):
        Document.model_validate(each)


typer.run(main)
"""


def figures() -> Iterator[Figure]:
    from orch.spec.loader.load import load_paths
    from orch.spec.models import MODELS

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder)
        documents = load_paths([folder]).require().documents
        files = dict.fromkeys(each.file for each in documents)
        read = [values for file in files for values in yaml.load_all(file.read_text(), yaml.CBaseLoader)]
        mappings = [(MODELS[values["type"]], values) for values in read]

        def ours() -> float:
            start = time.perf_counter()
            load_paths([folder])
            return time.perf_counter() - start

        def theirs() -> float:
            start = time.perf_counter()
            for model, values in mappings:
                model.model_validate(values)
            return time.perf_counter() - start

        mine, pydantic = side_by_side(ours, theirs, RUNS)
        rate, alone = (round(FILES / min(seconds)) for seconds in (mine, pydantic))
        against = f"pydantic alone on the parsed mappings ({rate:,} files a second against {alone:,})"
        yield Figure(f"reading {FILES} files", tuple(mine), tuple(pydantic), against, 8)
        bare = folder / "bare.py"
        bare.write_text(BARE)
        quickstart = str(SEEDS / "quickstart.yml")
        mine, other = side_by_side(
            lambda: timed([str(BIN / "orch"), "validate", quickstart]),
            lambda: timed([sys.executable, str(bare), quickstart]),
            RUNS,
        )
        loaded = _heavy(quickstart)
        against = f"a bare script with typer, PyYAML and pydantic ({loaded} loaded)"
        yield Figure("orch validate", tuple(mine), tuple(other), against, 2.5)


def _write(folder: Path) -> None:
    """The language's examples again and again, each time under other names."""
    seeds = [path.read_text() for path in sorted(SEEDS.glob("*.yml"))]
    for number in range(FILES):
        text = re.sub(r"^name: (\S+)", rf"name: \1-{number}", seeds[number % len(seeds)], flags=re.MULTILINE)
        text = re.sub(r"(fleets: \[|run: )(\w+)", rf"\1\2-{number}", text)
        text = text.replace("gpu-node", f"gpu-node{number}-")
        (folder / f"file-{number}.yml").write_text(text)


def _heavy(path: str) -> str:
    """Which heavy libraries `orch validate` loads."""
    code = (
        "import sys\nfrom orch.cli.validate import validate\nvalidate([sys.argv[1]])\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, path]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stderr.splitlines()[-1]
    return "no cloud SDK" if found == "[]" else found
