"""The verbs of `python -m orch.rehearsal` for an account of RunPod."""

from __future__ import annotations

from typing import ClassVar

from orch.rehearsal.shell import UnannouncedShell


class RunpodShell(UnannouncedShell):
    title: ClassVar[str] = "RunPod"
    kind: ClassVar[str] = "pod"

    def lose(self, instance: str) -> None:
        self.cloud.lose_pod(instance)


SHELL = RunpodShell
