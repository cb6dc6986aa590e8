"""The benchmarks run: what they call changes under them, and nobody looks at them for weeks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_fan_out_reaches_its_hosts_with_us_and_with_clush() -> None:
    words = [sys.executable, "-m", "bench", "fanout"]
    env = {**os.environ, "ORCHCTL_BENCH_HOSTS": "3"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert any(line.startswith("fan-out over 3 hosts: 0 lost in 3 runs") for line in said), said
    assert any("0 of the others lost, 5 timed out" in line for line in said), said
    assert any("`clush -f 64` (0 lost)" in line for line in said), said
