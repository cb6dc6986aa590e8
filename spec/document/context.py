"""What surrounds the files: the environment, the names of secrets, and what of them is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.spec.document.fence import Fence

if TYPE_CHECKING:
    from orch.spec.document.defaults import Common


@dataclass(frozen=True)
class LoadContext:
    """Context in which documents are read. `secrets` gives the names in the project's store, None where it is
    not read; it is called at the first reference to one.

    `launch` names the kinds of documents whose values are needed now: there, what is missing is an error. Of
    others it is a warning, for they may be launched elsewhere or later. `env_values` are the variables that
    were filled in so far, with their values: no message quotes them. `fence` bounds the files that documents
    of strangers may name, None for trusted ones. `backends` are those that the project's `orch.yml`
    configures, `common` its defaults and profiles for all documents.
    """

    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Callable[[], frozenset[str] | None] = lambda: None
    launch: frozenset[str] = frozenset()
    fence: Fence | None = None
    backends: tuple[str, ...] = ()
    common: Common | None = None
    env_values: dict[str, str] = field(default_factory=dict[str, str])
