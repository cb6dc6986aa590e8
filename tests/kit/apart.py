"""Suites that need a process of their own.

Google's libraries and Pulumi's provider SDK both describe `google.rpc.Status`, and protobuf takes only one of
them in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kit.support import ROOT


def passes(*suites: Path | str) -> None:
    """Run the tests of suites, with pytest's own words among them; each one passes, and none is left out."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, suites)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " skipped" not in done.stdout
