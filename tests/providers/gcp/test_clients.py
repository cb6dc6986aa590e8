"""The simulated account itself. How Google's clients see it: clients_suite.py, run with account_suite.py."""

from __future__ import annotations

import subprocess
import sys

from kit.support import ROOT


def test_the_account_itself_imports_nothing_of_googles() -> None:
    code = (
        "import sys, tempfile; from orch.rehearsal.gcp.account import GcpCloud; "
        "import orch.rehearsal.gcp.hooks; "
        "GcpCloud.create(tempfile.mkdtemp() + '/g').request('GET', 'projects/p/zones'); "
        "sys.exit(any(name.split('.')[0] in ('google', 'pulumi', 'pulumi_gcp') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
