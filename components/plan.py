"""What all plans share: errors that point into the file, and what a stack decided before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orch.spec.errors import ExitCode, OrchError

if TYPE_CHECKING:
    from orch.spec import Document


class PlanError(OrchError):
    """A fleet that cannot be built as written. `path` is the property it is about (`resources.cpu`)."""

    exit_code = ExitCode.CONFIG

    def __init__(
        self, code: str, summary: str, *, path: str, detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(summary, detail=detail, hint=hint, code=code)
        self.path = path

    def placed(self, document: Document) -> OrchError:
        """The same as a diagnostic with the property's place in the file."""
        from orch.spec import InvalidConfiguration

        found = document.diagnostic(
            self.code or "ORCH200", self.path, self.summary, detail=self.detail, hint=self.hint
        )
        return InvalidConfiguration((found,))


@dataclass(frozen=True)
class Previous:
    """What the stack has already decided, from its outputs. A new stack has none of it.

    The same file and the same `Previous` give the same plan, also in a fresh clone: a newer orch or another
    machine must not move a running cluster.
    """

    pins: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_outputs(cls, outputs: dict[str, Any]) -> Previous:
        pins = outputs.get("pins")
        return cls(pins={str(k): str(v) for k, v in pins.items()} if isinstance(pins, dict) else {})
