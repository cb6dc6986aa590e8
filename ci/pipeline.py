"""The pipeline that this process is a job of: repository, commit and pull request, from its environment."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from orch.ci.forge import Forge, NotAllowed
from orch.ci.github import GitHub
from orch.ci.gitlab import GitLab
from orch.spec.errors import ExitCode, OrchError

Kind = Literal["github", "gitlab"]

_REPOSITORY = {
    "github": re.compile(r"[\w.-]+/[\w.-]+"),
    "gitlab": re.compile(r"\d+|[\w.-]+(?:/[\w.-]+)+"),
}


class NoPipeline(OrchError):
    """Neither the command line nor the environment says what a command needs."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Pipeline:
    """Empty texts and None where the environment does not tell. `number`: of the pull request."""

    kind: Kind
    repo: str
    token: str
    url: str
    number: int | None = None
    head: str = ""
    base: str = ""
    base_branch: str = ""
    run_url: str = ""
    in_ci: bool = False

    @property
    def token_name(self) -> str:
        return "GITHUB_TOKEN" if self.kind == "github" else "GITLAB_TOKEN"

    def forge(self, author: str | None = None) -> Forge:
        """The forge, with the token. Raises NoPipeline, NoLibrary."""
        if not self.repo:
            variable = "GITHUB_REPOSITORY" if self.kind == "github" else "CI_PROJECT_ID"
            raise NoPipeline(
                "which repository?", hint=f"set {variable}; commands of `orch ci` take --repo, too"
            )
        if not _REPOSITORY[self.kind].fullmatch(self.repo):
            wanted = "OWNER/NAME" if self.kind == "github" else "GROUP/PROJECT, or a project's number"
            raise NoPipeline("this is no repository", where=self.repo, hint=f"write {wanted}")
        if not self.token:
            raise NoPipeline(
                "there is no token",
                hint=f"set {self.token_name}; docs/reference/ci.md tells what it must be allowed to do",
            )
        if not re.fullmatch(r"[!-~]+", self.token):
            # A library would tell the token in its error.
            raise NoPipeline(
                f"{self.token_name} cannot be a token",
                detail="a space, a line break or a character beyond ASCII is in it",
                hint="set it anew, without the end of the line that it was copied with",
            )
        if not _is_url(self.url):
            variable = "GITHUB_API_URL" if self.kind == "github" else "CI_SERVER_URL"
            raise NoPipeline(
                "this is no address of a forge", where=self.url, hint=f"{variable} has it: `https://HOST`"
            )
        if self.kind == "gitlab":
            return GitLab(self.repo, self.token, self.url, author)
        return GitHub(self.repo, self.token, self.url, author, in_actions=self.in_ci)

    def pull_number(self) -> int:
        """The number of the pull request. Raises NoPipeline."""
        if self.number is None:
            raise NoPipeline(
                "which pull request?", hint="give --pr, or run in a pipeline of a pull or merge request"
            )
        return self.number

    def with_options(
        self, repo: str | None, number: int | None, head: str | None, base: str | None
    ) -> Pipeline:
        """The same with what the command line says. Another pull request has other commits."""
        other = number is not None and number != self.number
        return replace(
            self,
            repo=repo or self.repo,
            number=self.number if number is None else number,
            head=head or ("" if other else self.head),
            base=base or ("" if other else self.base),
        )


def pipeline(environ: Mapping[str, str], kind: Kind | None = None) -> Pipeline:
    """The pipeline of the environment; GitHub where neither it nor `kind` tells. Raises NoPipeline."""
    if kind is None:
        kind = "gitlab" if environ.get("GITLAB_CI") == "true" else "github"
    return _gitlab(environ) if kind == "gitlab" else _github(environ)


def _github(environ: Mapping[str, str]) -> Pipeline:
    pull = _within(_event(environ.get("GITHUB_EVENT_PATH")), "pull_request")
    head, base = _within(pull, "head"), _within(pull, "base")
    reference = re.fullmatch(r"refs/pull/([1-9][0-9]{0,17})/(?:merge|head)", environ.get("GITHUB_REF", ""))
    number = pull.get("number") or (int(reference[1]) if reference else None)
    run, repo = environ.get("GITHUB_RUN_ID"), environ.get("GITHUB_REPOSITORY", "")
    server = environ.get("GITHUB_SERVER_URL", "https://github.com")
    branch = environ.get("GITHUB_REF", "").removeprefix("refs/heads/")
    return Pipeline(
        "github",
        repo,
        environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "",
        environ.get("GITHUB_API_URL") or "https://api.github.com",
        number if type(number) is int and number > 0 else None,
        _text(head, "sha") or environ.get("GITHUB_SHA", ""),
        _text(base, "sha"),
        _text(base, "ref") or ("" if branch.startswith("refs/") else branch),
        f"{server}/{repo}/actions/runs/{run}" if run and repo else "",
        environ.get("GITHUB_ACTIONS") == "true",
    )


def _gitlab(environ: Mapping[str, str]) -> Pipeline:
    number = environ.get("CI_MERGE_REQUEST_IID", "")
    return Pipeline(
        "gitlab",
        environ.get("CI_MERGE_REQUEST_PROJECT_ID") or environ.get("CI_PROJECT_ID") or "",
        environ.get("GITLAB_TOKEN") or "",
        environ.get("CI_SERVER_URL") or "https://gitlab.com",
        int(number) if re.fullmatch(r"[1-9][0-9]{0,17}", number) else None,
        environ.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or environ.get("CI_COMMIT_SHA") or "",
        environ.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or "",
        environ.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME") or environ.get("CI_COMMIT_BRANCH") or "",
        environ.get("CI_PIPELINE_URL") or "",
        environ.get("GITLAB_CI") == "true",
    )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _within(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The object at a key of an event; {} where there is none."""
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _text(data: dict[str, Any], key: str) -> str:
    found = data.get(key)
    return found if isinstance(found, str) else ""


def _event(path: str | None) -> dict[str, Any]:
    """The event that started the workflow. Raises NoPipeline for a file that is none."""
    if not path:
        return {}
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise NoPipeline(
            "the event of the workflow cannot be read",
            where=path,
            detail=str(error),
            hint="GITHUB_EVENT_PATH names it; unset it and give --repo and --pr",
        ) from error
    return data if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Approved:
    """An approval of a forge. `by`: who gave it, and where; `proof`: the text in which the mark stands."""

    by: str
    proof: str


def approved_in_pull(
    where: Pipeline, forge: Forge, number: int, mark: str, used: Collection[str] = ()
) -> Approved:
    """Return who approved a pull or merge request with this mark, by an approval that is not in `used`.

    Raises NotAllowed, ForgeError.
    """
    approvals = tuple(forge.approvals(number))
    spent = ""
    for each in approvals:
        proof = f"{where.kind}:{where.repo}#{number}/{each.id} {mark}"
        if any(line.strip() == mark for line in each.body.split("\n")):
            if proof not in used:
                return Approved(f"{each.author} in {where.repo}#{number}", proof)
            spent = each.author
    others = ", ".join(dict.fromkeys(each.author for each in approvals))
    raise NotAllowed(
        f"nobody has approved this run in {forge.noun} {number}",
        where=where.repo,
        detail=f"the approval of {spent} was used before: one approval passes one gate, once"
        if spent
        else f"approved without its mark: {others}"
        if others
        else "it has no approval that counts",
        hint=f"somebody who may write there approves it, with the line `{mark}`",
        code="ORCH418",
    )
