"""What is installed is what is in the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from kit.support import ROOT

SHIPPED = (
    "cli",
    "ci",
    "spec",
    "catalog",
    "offers",
    "policies",
    "components",
    "providers",
    "rehearsal",
    "review",
    "runbooks",
    "stacks",
    "runner",
    "templates",
    "images",
)

DOCUMENTS = "docs/runbooks/"
"""Documentation that orch runs."""

NOT_FOR_HELP = ["pulumi", "grpc", "pydantic", "fabric", "paramiko", "docker", "sqlalchemy", "yaml"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        left_out = name.startswith(("tests/", "bench/", "docs/", "examples/"))
        if (ROOT / name).is_file() and (not left_out or name.startswith(DOCUMENTS)):
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    # As `pip wheel` does, but with the backend that is here: no index is asked.
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "__init__.py", "py.typed", DOCUMENTS, *SHIPPED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {f"orch/{name}" for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert sorted(wanted - held) == [], "listed neither as a package nor as package data"
    assert sorted(held - wanted) == []


def test_the_wheel_has_both_commands(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entries,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    text = archive.read(entries).decode()
    assert "orch = orch.cli.main:main" in text
    assert "pulumi-resource-orch = orch.providers.orch.plugin:main" in text


@pytest.mark.parametrize(
    ("loading", "banned"),
    [
        ("import orch.cli.main", NOT_FOR_HELP),
        # A shell that completes a verb's options, and the verb's own `--help`, load it without calling it.
        ("from orch.cli.verbs import VERBS, load; [load(verb.name) for verb in VERBS]", NOT_FOR_HELP),
        # What is loaded before a detached run's driver is made, and what a command loads beside that driver.
        ("import orch.cli.driver.opening", [*NOT_FOR_HELP, "typer"]),
        ("import orch.stacks.project, orch.runner.runs.submit", ["sqlalchemy", "paramiko", "fabric"]),
        ("import orch.runner.runs.lifecycle, orch.stacks.project", ["orch.spec.models"]),
        (
            "import orch.spec.loader.load",
            ["pulumi", "fabric", "paramiko", "docker", "sqlalchemy", "rich", "typer"],
        ),
        ("import orch.runner", ["pulumi", "orch.stacks", "orch.components"]),
        ("import orch.providers.orch.plugin", ["docker", "fabric", "paramiko"]),
    ],
    ids=["main", "every verb", "opening", "submitting", "driving", "spec", "runner", "provider"],
)
def test_heavy_libraries_wait_until_they_are_needed(loading: str, banned: list[str]) -> None:
    code = f"{loading}; import sys; print([n for n in {banned!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
