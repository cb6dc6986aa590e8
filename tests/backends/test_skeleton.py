"""The skeleton of `scripts/new_backend.py`: as it is generated, and as the small cloud Nimbus.

`nimbus/` has the files of that cloud in which something was written by hand; all others are generated.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.support import ROOT, Folder

NIMBUS = Path(__file__).parent / "nimbus"
REMAINS = re.compile(r"(?m)^@remains\((?:\n(?:    .*\n)+\)|.*\))\n")
LONG = "voltageeurope1"
NOT_COPIED = re.compile(r"tests/|docs/(?!reference/|runbooks/)|examples/")


def run(folder: Path, path: Path, *words: str) -> str:
    """Run Python in a folder, with `path` before all other modules; return its output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository with a backend of the longest name."""
    folder = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not NOT_COPIED.match(name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    (folder / ".types").mkdir()
    (folder / ".types" / "orch").symlink_to("..")
    run(folder, folder / ".types", "scripts/new_backend.py", LONG, "--title", "Voltage Cloud Europe")
    return folder


def test_a_generated_backend_is_clean_and_its_tests_list_what_remains(checkout: Path) -> None:
    modules = checkout / ".types"
    run(checkout, modules, "-m", "ruff", "check", ".")
    run(checkout, modules, "-m", "ruff", "format", "--check", ".")
    assert "0 broken" in run(checkout, modules, str(Path(sys.executable).with_name("lint-imports")))
    told = run(checkout, modules, "-m", "pytest", "-q", "-ra", "--noconftest", f"tests/components/{LONG}")
    assert "1 passed, 13 xfailed" in told
    assert f"`{LONG}`" in (checkout / "docs" / "reference" / "configuration.md").read_text()
    assert "test_a_machine_is_created - account/client.py: create a machine" in told


def test_a_name_that_is_taken_is_refused(checkout: Path) -> None:
    for name, why in (("crusoe", "there is a backend crusoe already"), ("a-b", "a name has 2 to 14")):
        words = [sys.executable, "scripts/new_backend.py", name]
        done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert why in done.stderr


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    words = ["scripts/new_backend.py", "nimbus", "--title", "Nimbus", "--package", str(folder)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def nimbus(generated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of Nimbus, as it is installed."""
    folder = tmp_path_factory.mktemp("installed") / "nimbus"
    shutil.copytree(generated, folder)
    shutil.copytree(NIMBUS, folder, dirs_exist_ok=True)
    test = folder / "tests" / "test_nimbus.py"
    test.write_text(REMAINS.sub("", test.read_text()))
    entry = re.search(r'"orch\.backends"\]\n(.*)\n', (folder / "pyproject.toml").read_text())
    assert entry is not None
    info = folder / "orch_nimbus-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orch-nimbus\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[orch.backends]\n{entry[1].replace(chr(34), '')}\n")
    return folder


def test_a_small_cloud_takes_150_lines_by_hand(generated: Path) -> None:
    written = 0
    for file in NIMBUS.rglob("*"):
        if file.suffix in (".py", ".csv"):
            before = (generated / file.relative_to(NIMBUS)).read_text().splitlines()
            lines = difflib.ndiff(before, file.read_text().splitlines())
            written += sum(line.startswith("+ ") for line in lines)
    assert 0 < written <= 150


def test_nimbus_does_what_the_skeleton_asks_of_a_backend(nimbus: Path) -> None:
    told = run(nimbus, nimbus, "-m", "pytest", "-q", "--import-mode=importlib", "tests")
    assert "14 passed" in told


@pytest.mark.usefixtures("engine")
def test_a_fleet_on_nimbus_is_validated_and_previewed_in_a_rehearsal(nimbus: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("orch.yml", "project: lab\nbackends: [{type: nimbus, ssh_cidrs: [198.51.100.0/24]}]\n")
    folder.write("fleet.yml", "type: fleet\nname: lab\nnodes: 2\nresources: {gpu: 'H100:8'}\n")
    (tmp_path / ".orch" / "rehearsal").mkdir(parents=True)
    folder.write(".orch/rehearsal/knobs.yml", "nodes: null\n")
    env = {"PYTHONPATH": str(nimbus)}
    assert folder.orch("validate", ".", "--strict", env=env).code == 0
    said = folder.orch("preview", "fleet.yml", "--rehearse", env=env)
    assert "plan: 5 to create; costs $36.80 per hour" in said.out, said.err
    assert "capacity: Nimbus reports some in south now" in said.out
