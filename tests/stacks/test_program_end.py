"""A program that waits for ever does not keep orch from ending."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import threading
from pulumi.automation._server import LanguageServer
from orch.stacks.engine.process import _program_servicer

class Call:
    left = 3

    def is_active(self):
        self.left -= 1
        return self.left > 0

LanguageServer.Run = lambda self, request, context: threading.Event().wait()
print(_program_servicer(print).Run(None, Call()).bail)
"""


def test_a_program_that_waits_for_an_engine_that_is_gone_is_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


LEFT = """
import gc
from orch.stacks.engine.process import _end_leftovers

async def later():
    pass

gc.disable()
ring = [later()]
ring.append(ring)
del ring
_end_leftovers()
"""


def test_what_a_failed_program_never_began_is_left_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
