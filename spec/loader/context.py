"""What surrounds the files: the environment, the names of secrets, and what of them is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.spec.loader.fence import Fence

if TYPE_CHECKING:
    from orch.spec.defaults import Common


@dataclass(frozen=True)
class LoadContext:
    """`secrets` are the names in the project's store, None where nobody looked.

    `launch` names the kinds of documents whose values are needed now: there, what is missing is an error. Of
    others it is a warning, for they may be launched elsewhere or later. `lent` are the variables that were
    filled in so far, with their values: kept out of messages. `fence` is there for documents
    of strangers: what they may not look beyond. `backends` are those that the project's `orch.yml`
    configures, `common` what it says for all documents.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: frozenset[str] | None = None
    launch: frozenset[str] = frozenset()
    fence: Fence | None = None
    backends: tuple[str, ...] = ()
    common: Common | None = None
    lent: dict[str, str] = field(default_factory=dict[str, str])
