"""An engine on PATH that writes down what it is called with, and hands the call on to the real one."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orch.stacks.engine.install import require

# Words of a subcommand that is one of a group.
GROUPS = ("stack",)


@dataclass(frozen=True)
class CountedEngine:
    """`folder` goes first on PATH."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> CountedEngine:
        real = require().command
        made = cls(folder)
        folder.mkdir()
        file = folder / "pulumi"
        file.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {shlex.quote(str(made.log))}\n"
            f'exec {shlex.quote(str(real))} "$@"\n'
        )
        file.chmod(0o755)
        return made

    @property
    def log(self) -> Path:
        return self.folder / "calls.txt"

    def calls(self) -> Counter[str]:
        """Subcommands since the last look, and how often each was called, but for `version`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return Counter(each for each in map(_subcommand, lines) if each != "version")


def _subcommand(line: str) -> str:
    words = [word for word in line.split() if not word.startswith("--")]
    return " ".join(words[: 2 if words[0] in GROUPS else 1])
