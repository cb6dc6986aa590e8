"""Which jobs a cloud trusts with which rights: three roles, for pull requests, for plans and for applies.

`preview` is for jobs of pull requests, whose workflow anybody who may push can change: it reads, and decrypts
nothing. `plan` reads and decrypts, `apply` writes; both are for workflows of the branch that is applied.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from orch.ci.workflows.facts import PipelineFacts

Role = Literal["preview", "plan", "apply"]
ROLES: tuple[Role, ...] = ("preview", "plan", "apply")

GITHUB_ISSUER = "token.actions.githubusercontent.com"
AUDIENCE = "sts.amazonaws.com"

READS = (
    *("ec2:Describe*", "elasticloadbalancing:Describe*", "elasticfilesystem:Describe*", "fsx:Describe*"),
    *("iam:GetInstanceProfile", "iam:GetRole", "iam:GetRolePolicy", "iam:ListAttachedRolePolicies"),
    *("iam:ListInstanceProfilesForRole", "iam:ListRolePolicies", "pricing:GetProducts"),
    *("servicequotas:GetServiceQuota", "servicequotas:ListServiceQuotas", "ssm:GetParameter*"),
    *("sts:GetCallerIdentity", "kms:DescribeKey"),
)
"""What plans ask of AWS beside the state."""


@dataclass(frozen=True)
class Trusted:
    """The jobs of a role: subjects of their tokens, on GitHub also files of their workflows, () for any."""

    subjects: tuple[str, ...]
    workflows: tuple[str, ...] = ()


def trusted(facts: PipelineFacts, role: Role) -> Trusted:
    """The jobs that may have a role."""
    if facts.forge == "gitlab":
        ref = "*" if role == "preview" else facts.branch
        return Trusted((f"project_path:{facts.repo}:ref_type:branch:ref:{ref}",))
    if role == "preview":
        return Trusted((f"repo:{facts.repo}:pull_request",))
    before = ("before-merge",) if facts.before_merge else ()
    environments, names = (
        ((facts.planning,), ("apply", "drift", *before))
        if role == "plan"
        else ((facts.environment, facts.nightly), ("apply", "nightly", *before))
    )
    files = (f"{facts.repo}/.github/workflows/orch-{name}{facts.suffix}.yml" for name in names)
    return Trusted(
        tuple(f"repo:{facts.repo}:environment:{each}" for each in environments),
        tuple(f"{each}@refs/heads/{facts.branch}" for each in files),
    )


def issuer(facts: PipelineFacts) -> str:
    return GITHUB_ISSUER if facts.forge == "github" else facts.host


def aws_trust(facts: PipelineFacts, role: Role) -> str:
    """The trust policy of a role: tokens for AWS, of these subjects and workflows alone.

    Source: docs.github.com, "Configuring OpenID Connect in Amazon Web Services"; docs.gitlab.com, the same;
    for `job_workflow_ref` the IAM user guide, "IAM and AWS STS condition context keys".
    """
    jobs, name = trusted(facts, role), issuer(facts)
    kind = "StringLike" if any("*" in each for each in jobs.subjects) else "StringEquals"
    equals: dict[str, Any] = {f"{name}:aud": AUDIENCE}
    if jobs.workflows:
        equals[f"{name}:job_workflow_ref"] = list(jobs.workflows)
    condition: dict[str, dict[str, Any]] = {"StringEquals": equals}
    condition.setdefault(kind, {})[f"{name}:sub"] = list(jobs.subjects)
    provider = f"arn:aws:iam::ACCOUNT_ID:oidc-provider/{name}"
    return _policy(
        {
            "Effect": "Allow",
            "Principal": {"Federated": provider},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": condition,
        }
    )


def aws_reads(facts: PipelineFacts, role: Role) -> str:
    """The permissions of a role that reads: objects of the state, what plans ask of AWS, and for plans that
    are applied the key of the state's secrets. None of them writes."""
    statements: list[dict[str, Any]] = [
        {"Sid": "Cloud", "Effect": "Allow", "Action": list(READS), "Resource": "*"}
    ]
    state = urlsplit(facts.state)
    if state.scheme == "s3":
        prefix = f"{path}/" if (path := state.path.strip("/")) else ""
        bucket = f"arn:aws:s3:::{state.netloc}"
        statements += [
            {
                "Sid": "State",
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": f"{bucket}/{prefix}.pulumi/*",
            },
            {"Sid": "List", "Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket},
        ]
    if role == "plan" and facts.secrets_provider.startswith("awskms://"):
        key = {"Sid": "Secrets", "Effect": "Allow", "Action": "kms:Decrypt", "Resource": "KEY_ARN"}
        statements.append(key)
    return _policy(*statements)


def gcp_role(facts: PipelineFacts) -> str:
    """The expression in CEL by which GCP gives a token the attribute `orch_role`; "none" has no rights.

    Source: cloud.google.com, "Workload Identity Federation", attribute mappings.
    """
    if facts.forge == "gitlab":
        (subject,) = trusted(facts, "apply").subjects
        environments = _listed((facts.environment, facts.nightly))
        return (
            f"assertion.sub == '{subject}' && assertion.ref_protected == 'true' ? "
            f"(has(assertion.environment) && assertion.environment in {environments} "
            "? 'apply' : 'plan') : 'preview'"
        )
    found: list[str] = []
    for role in ROLES:
        jobs = trusted(facts, role)
        file = f" && assertion.job_workflow_ref in {_listed(jobs.workflows)}" if jobs.workflows else ""
        found.append(f"assertion.sub in {_listed(jobs.subjects)}{file} ? '{role}' : ")
    return "".join(found) + "'none'"


def _listed(words: Sequence[str]) -> str:
    """Words as a list in CEL: names of the grammar of `gathering`, so without quotes in them."""
    quoted = ", ".join(f"'{each}'" for each in words)
    return f"[{quoted}]"


def _policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, indent=2) + "\n"
