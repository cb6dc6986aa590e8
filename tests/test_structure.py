"""Limits of the structure that no linter checks: lines of functions and modules, and circles of modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
FUNCTION, MODULE = 80, 400
BIG = {
    "orch.cli.verbs",
    "orch.rehearsal.kubernetes.controllers.kueue",
    "orch.rehearsal.kubernetes.kubelet.pods",
    "orch.runbooks.shell",
    "orch.runner.ledger.ledger",
    "orch.runner.runs.attempts",
    "orch.runner.runs.driver",
}
"""Modules that may be longer. A new one needs a reason; no more than ten."""


def sources() -> dict[str, str]:
    """Return the text of each module of the package, by its name."""
    listed = (ROOT / "pyproject.toml").read_text("utf-8").partition("\npackages = [")[2].partition("]")[0]
    return {
        package if file.stem == "__init__" else f"{package}.{file.stem}": file.read_text("utf-8")
        for package in ast.literal_eval(f"[{listed}]")
        for file in ROOT.joinpath(*package.split(".")[1:]).glob("*.py")
    }


def faults(texts: Mapping[str, str]) -> Iterator[str]:
    """Yield what passes a limit. `texts`: modules by name, whose imports are absolute."""
    imports = dict[str, set[str]]()
    for module, text in texts.items():
        tree = ast.parse(text)
        if len(text.splitlines()) > MODULE and module not in BIG:
            yield f"{module} has more than {MODULE} lines"
        typed = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        names = set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if (node.end_lineno or 0) - node.lineno >= FUNCTION:
                    yield f"{module}.{node.name} has more than {FUNCTION} lines"
            elif id(node) not in typed and isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{each.name}" for each in node.names}
                names |= {each if each in texts else node.module for each in whole}
            elif id(node) not in typed and isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
        imports[module] = names & texts.keys() - {module}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        yield f"a circle of modules: {' -> '.join(error.args[1])}"


def test_no_limit_is_passed() -> None:
    assert list(faults(sources())) == []
    assert len(BIG) <= 10


def test_each_limit_is_seen() -> None:
    long = "def f():\n" + "    x = 1\n" * FUNCTION
    texts = {"a": "from b import f\n", "b": f"import a\n{long}", "c": "\n" * (MODULE + 1)}
    found = "; ".join(faults(texts))
    assert all(each in found for each in ("b.f has more", "c has more", "a circle of modules"))
