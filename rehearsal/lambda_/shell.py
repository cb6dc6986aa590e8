"""The verbs of `python -m orch.rehearsal` for an account of Lambda."""

from __future__ import annotations

from typing import ClassVar

from orch.rehearsal.shell import UnannouncedShell


class LambdaShell(UnannouncedShell):
    title: ClassVar[str] = "Lambda"
    kind: ClassVar[str] = "instance"


SHELL = LambdaShell
