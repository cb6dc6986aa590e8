"""The verbs of `python -m orch.rehearsal` for an account of Nebius."""

from __future__ import annotations

import argparse
from typing import ClassVar

from orch.rehearsal.shell import Shell, named


class NebiusShell(Shell):
    title: ClassVar[str] = "Nebius"
    hint: ClassVar[str | None] = "`interrupt` stops a machine"

    def interrupt(self, args: argparse.Namespace) -> None:
        """Stop a machine, by its id or name. Nebius announces nothing."""
        word = args.instance
        found = [
            each
            for each, doc in self.cloud.instances().items()
            if word in (each, doc["metadata"]["name"], doc["spec"].get("hostname", ""))
        ]
        self.cloud.take_back(named(self.cloud, word, found))


SHELL = NebiusShell
