"""What surrounds the files: the environment, the names of secrets, and whether anything is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .diagnostics import Severity


@dataclass(frozen=True)
class Outside:
    """`secrets` are the names in the project's store, None where nobody looked.

    With `launch` what is missing out there is an error, else a warning: the files may be launched elsewhere.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: frozenset[str] | None = None
    launch: bool = False

    @property
    def missing(self) -> Severity:
        return Severity.ERROR if self.launch else Severity.WARNING
