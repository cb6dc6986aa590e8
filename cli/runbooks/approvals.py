"""Approvals of runbooks by people who are not at the terminal: those of a pull request."""

from __future__ import annotations

import os

from orch.ci.forge import NotAllowed
from orch.ci.pipeline import pipeline


def approved_in_pull(number: int, mark: str) -> str:
    """Who approved a pull or merge request with this mark. Raises NotAllowed, NoPipeline, ForgeError."""
    where = pipeline(os.environ)
    forge = where.forge()
    approvals = tuple(forge.approvals(number))
    for each in approvals:
        if any(line.strip() == mark for line in each.body.split("\n")):
            return f"{each.author} in {where.repo}#{number}"
    others = ", ".join(dict.fromkeys(each.author for each in approvals))
    raise NotAllowed(
        f"nobody has approved this run in {forge.noun} {number}",
        where=where.repo,
        detail=f"approved without its mark: {others}" if others else "it has no approval that counts",
        hint=f"somebody who may write there approves it, with the line `{mark}`",
        code="ORCH418",
    )
