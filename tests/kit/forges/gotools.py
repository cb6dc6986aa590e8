"""Programs in Go that tests run: built once for a user, of pinned versions, by `go install`.

`python tests/kit/forges/gotools.py actionlint act` builds what is not there; `make set-up-test` does so for
actionlint.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs

TOOLS = {
    "actionlint": ("github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12"),
    "act": ("github.com/nektos/act", "v0.2.89"),
    "conftest": ("github.com/open-policy-agent/conftest", "v0.71.1"),
}


def tool(name: str) -> Path:
    """The program, built now if it is not there: 20 s for actionlint, minutes for act and conftest."""
    package, version = TOOLS[name]
    folder = Path(platformdirs.user_cache_dir("orch")) / "go-tools" / f"{name}-{version}"
    program = folder / name
    if os.access(program, os.X_OK):
        return program
    if shutil.which("go") is None:
        raise RuntimeError(f"{name} is not there and Go is not either: run `make set-up-test`")
    building = folder.with_name(f"{folder.name}.building-{os.getpid()}")
    building.mkdir(parents=True)
    try:
        subprocess.run(
            ["go", "install", "-trimpath", f"{package}@{version}"],
            env={**os.environ, "GOBIN": str(building), "GOFLAGS": "-p=2"},
            check=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        (building / name).replace(program)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return program


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(tool(each))
