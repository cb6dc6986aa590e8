"""Whether an environment of a forge is protected, as a workflow that writes needs it to be."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orch.ci.forge import NotAllowed

BY_BRANCH = "branch"
"""The value of ORCH_PROTECTED with which the branch's protection is enough: nobody approves a deployment."""


@dataclass(frozen=True)
class Environment:
    """An environment as its forge has it. `branches`: names or patterns of those that may deploy to it, None
    for all; `reviewed`: somebody has to approve a deployment."""

    name: str
    exists: bool
    reviewed: bool = False
    branches: tuple[str, ...] | None = None


def require_protected(environment: Environment, branch: str, *, reviewed: bool, where: str) -> None:
    """Raise NotAllowed unless only `branch` deploys to an environment, if `reviewed` after an approval."""
    if missing := list(_missing(environment, branch, reviewed)):
        raise NotAllowed(
            f"the environment {environment.name} is not protected, so nothing is done with its rights",
            where=where,
            detail="; ".join(missing),
            hint="set it up as SETUP.md beside the workflows says, then run the job again",
            code="ORCH472",
        )


def _missing(environment: Environment, branch: str, reviewed: bool) -> Iterator[str]:
    if not environment.exists:
        yield "there is no such environment: it would be open to each branch"
        return
    if environment.branches is None:
        yield "each branch may deploy to it"
    elif other := [each for each in environment.branches if each != branch]:
        yield f"others may deploy to it: {', '.join(other)}"
    elif branch not in environment.branches:
        yield f"{branch} may not deploy to it"
    if reviewed and not environment.reviewed:
        yield "nobody has to approve a deployment"


def of_github(
    name: str, told: Mapping[str, Any] | None, policies: Mapping[str, Any], branch: str
) -> Environment:
    """Return an environment from GitHub's answers about it, None for 404, and about its deployment branches.

    `protected_branches` counts as `branch`: it is protected itself, or the environment is open to nobody. A
    policy of tags is no branch, even if it has the branch's name.
    Source: REST API, "Get an environment", "List deployment branch policies".
    """
    if told is None:
        return Environment(name, exists=False)
    rules = told.get("protection_rules") or ()
    reviewed = any(each.get("type") == "required_reviewers" and each.get("reviewers") for each in rules)
    policy = told.get("deployment_branch_policy")
    branches: tuple[str, ...] | None = None
    if policy and policy.get("custom_branch_policies"):
        found = policies.get("branch_policies") or ()
        branches = tuple(_allowed(policy) for policy in found)
    elif policy and policy.get("protected_branches"):
        branches = (branch,)
    return Environment(name, True, reviewed, branches)


def _allowed(policy: Mapping[str, Any]) -> str:
    """Return the branch that a deployment policy of GitHub allows, or `tag NAME` for one of tags."""
    name = str(policy.get("name"))
    return name if policy.get("type", "branch") == "branch" else f"{policy['type']} {name}"


def of_gitlab(name: str, token: str) -> Environment:
    """Return an environment from the claims of a job's identity token.

    The token is the job's own, from its runner, so its signature is not checked. Source: GitLab, "OpenID
    Connect (OIDC) Authentication Using ID Tokens", payload. Raises NotAllowed for a text that is no token.
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        own = claims.get("environment") == name
        protected = str(claims.get("environment_protected")).lower() == "true"
        safe = str(claims.get("ref_protected")).lower() == "true" and claims.get("ref_type") == "branch"
        ref = str(claims.get("ref"))
    except (IndexError, ValueError, AttributeError, binascii.Error) as error:
        raise NotAllowed(
            f"nothing tells whether the environment {name} is protected",
            detail="ORCH_ID_TOKEN is no identity token of a job",
            hint="write the workflows again: `orch ci init gitlab`",
            code="ORCH472",
        ) from error
    return Environment(name, own, protected, (ref,) if safe else None)
