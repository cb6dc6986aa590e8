"""Findings in the forms that code hosts read, with files named from where the repository begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orch.spec.diagnostics import Diagnostic


def report(form: str, found: Sequence[Diagnostic]) -> str:
    """A report in the form `github`, `sarif` or `gitlab`; nothing of no findings for GitHub."""
    from orch.policies.settings import rule_texts
    from orch.spec.diagnostics import render_github, render_gitlab, render_sarif

    if form == "github":
        text = render_github(found, repository())
    else:
        text = (render_sarif if form == "sarif" else render_gitlab)(found, repository(), rule_texts())
    return f"{text}\n" if text else ""


def repository() -> Path:
    """Return the root of the repository: the nearest folder upwards with a `.git`, else this one."""
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
