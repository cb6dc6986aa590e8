"""Writes ci/requirements.txt: every dependency of orch that a pipeline installs, with its version and hashes.

    python -m venv FOLDER && FOLDER/bin/pip install uv
    python scripts/requirements.py FOLDER/bin/uv

Run it after a change of dependencies in pyproject.toml, before a release, and when a dependency has a fix. uv
resolves for Python 3.10 to 3.13 at once; kept are the hashes of wheels for Linux on x86_64 and aarch64. Each
requirement names what needs it, by which `orch ci init` finds those of a project. No index is named in it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "ci" / "requirements.txt"

PYTHONS = ("310", "311", "312", "313")

WHERE = (
    "sys_platform == 'linux' and python_full_version < '3.14' and implementation_name == 'cpython'"
    " and platform_python_implementation == 'CPython'"
)
MACHINES = ("x86_64", "aarch64")

BUILD = "setuptools>=77"
"""Builds orch where `ci init --package` names a commit and no wheel."""

HEAD = """\
# Written by scripts/requirements.py. Dependencies of orch for pipelines: Linux on x86_64 and aarch64,
# Python 3.10 to 3.13. `orch ci init` writes the part that a project needs.
"""

_WHEEL = re.compile(
    rf"-(?:py2\.py3|py3|cp3\d+)-none-any\.whl"
    rf"|-(?:(?:cp(?:{'|'.join(PYTHONS)})|py3)-(?:cp\d+|none)|cp3\d+-abi3)-manylinux[\w.]*_(?:x86_64|aarch64)\.whl"
)


def main(uv: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = (ROOT / "pyproject.toml").read_text("utf-8")
        (listed,) = re.findall(r'"orch-fleet\[([\w,]+)\]"', text)  # all extras but `dev` itself
        text = text.replace("\nci = [", f'\nbuild = ["{BUILD}"]\nci = [', 1)
        where = [f"{WHERE} and platform_machine == '{each}'" for each in MACHINES]
        text += f"\n[tool.uv]\nenvironments = {json.dumps(where)}\n"
        (folder / "pyproject.toml").write_text(text, "utf-8")
        compile_ = [uv, "pip", "compile", "-q", "--universal", "--python-version", "3.10", "pyproject.toml"]
        compile_ += ["--only-binary", ":all:", "--generate-hashes", "--no-header", "--annotation-style=line"]
        compile_ += [word for each in (*listed.split(","), "build") for word in ("--extra", each)]
        subprocess.run([*compile_, "-o", "requirements.txt"], cwd=folder, check=True)
        pins = ["-c", "requirements.txt", "--format", "pylock.toml", "-o", "pylock.toml"]
        subprocess.run([*compile_, *pins], cwd=folder, check=True)
        fit = set(_fit((folder / "pylock.toml").read_text("utf-8")))
        FILE.write_text(HEAD + "".join(_kept((folder / "requirements.txt").read_text("utf-8"), fit)), "utf-8")


def _fit(lock: str) -> Iterator[str]:
    """The hashes of the wheels that pipelines may install."""
    for url, digest in re.findall(r'url = "([^"]+)"[^\n]*?sha256 = "([0-9a-f]{64})"', lock):
        if _WHEEL.search(url.rpartition("/")[2]):
            yield digest


def _kept(text: str, fit: set[str]) -> Iterator[str]:
    """The requirements, each with the hashes that are kept."""
    for block in re.findall(r"(?m)^\S.*\n(?:    .*\n)*", text):
        first, *more = block.splitlines()
        hashes = [line for line in more if "--hash" in line and line.split(":")[1].strip(" \\") in fit]
        vias = [line for line in more if "# via" in line]
        pin, _, marker = first.removesuffix(" \\").partition(" ; ")
        if not hashes or not all(machine in marker for machine in MACHINES):
            raise SystemExit(f"{pin} is not for both machines")
        # What holds for all that pipelines run on is left out of the marker.
        bounds = re.findall(r"python_full_version (?:<|>=) '3\.1[0-3]'", marker)
        line = f"{pin} ; {' and '.join(bounds)}" if bounds else pin
        hashes[-1] = hashes[-1].removesuffix(" \\")
        needed = ", ".join(vias).replace(" (pyproject.toml)", "")
        yield "\n".join((f"{line} \\", *hashes, needed)) + "\n"


if __name__ == "__main__":
    main(sys.argv[1])
