"""The verbs of `python -m orch.rehearsal` for an account of Crusoe."""

from __future__ import annotations

import argparse
from typing import Any, ClassVar

from orch.rehearsal.shell import UnannouncedShell


class CrusoeShell(UnannouncedShell):
    title: ClassVar[str] = "Crusoe"
    kind: ClassVar[str] = "VM"

    def reservation(self, args: argparse.Namespace) -> Any:
        return self.cloud.add_reservation(args.name, args.type, args.zone, args.count)


SHELL = CrusoeShell
