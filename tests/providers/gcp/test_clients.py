"""Google's clients on a simulated account, in a process of their own.

Their library and Pulumi's provider SDK both describe `google.rpc.Status`, and protobuf takes only one of them
in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT


def test_googles_clients_are_answered_in_the_process() -> None:
    suite = Path(__file__).with_name("clients_suite.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " skipped" not in done.stdout


def test_the_account_itself_imports_nothing_of_googles() -> None:
    code = (
        "import sys, tempfile; from orch.rehearsal.gcp.account import GcpCloud; "
        "import orch.rehearsal.gcp.client_hook; "
        "GcpCloud.create(tempfile.mkdtemp() + '/g').request('GET', 'projects/p/zones'); "
        "sys.exit(any(name.split('.')[0] in ('google', 'pulumi', 'pulumi_gcp') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
