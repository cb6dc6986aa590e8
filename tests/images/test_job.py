"""What the default image of a job has."""

from __future__ import annotations

import subprocess

from orch import images

# Modules that this interpreter had to compile, or would have to.
UNCOMPILED = """
import os, sys
sys.dont_write_bytecode = True
import torch, torch.distributed.run, torch.distributed.elastic.rendezvous.c10d_rendezvous_backend
print(sorted(name for name, module in sys.modules.items()
             if getattr(module, "__cached__", None) and not os.path.exists(module.__cached__)))
"""


def test_ranks_of_a_fresh_container_compile_nothing() -> None:
    image = images.ensure("job", progress=print)
    command = ["docker", "run", "--rm", "--network", "none", image, "python3", "-c", UNCOMPILED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
