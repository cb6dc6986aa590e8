"""Objects of GitHub's REST API, whole, as its answers have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

WHEN = "2026-11-25T12:00:00Z"
DOCUMENTATION = "https://docs.github.com/rest"
SITE = "https://github.com"

_USERS_LINKS = {
    "followers_url": "/followers",
    "following_url": "/following{/other_user}",
    "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}",
    "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs",
    "repos_url": "/repos",
    "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}
_REPOSITORYS_LINKS = {
    "forks_url": "/forks",
    "keys_url": "/keys{/key_id}",
    "collaborators_url": "/collaborators{/collaborator}",
    "teams_url": "/teams",
    "hooks_url": "/hooks",
    "issue_events_url": "/issues/events{/number}",
    "events_url": "/events",
    "assignees_url": "/assignees{/user}",
    "branches_url": "/branches{/branch}",
    "tags_url": "/tags",
    "blobs_url": "/git/blobs{/sha}",
    "git_tags_url": "/git/tags{/sha}",
    "git_refs_url": "/git/refs{/sha}",
    "trees_url": "/git/trees{/sha}",
    "statuses_url": "/statuses/{sha}",
    "languages_url": "/languages",
    "stargazers_url": "/stargazers",
    "contributors_url": "/contributors",
    "subscribers_url": "/subscribers",
    "subscription_url": "/subscription",
    "commits_url": "/commits{/sha}",
    "git_commits_url": "/git/commits{/sha}",
    "comments_url": "/comments{/number}",
    "issue_comment_url": "/issues/comments{/number}",
    "contents_url": "/contents/{+path}",
    "compare_url": "/compare/{base}...{head}",
    "merges_url": "/merges",
    "archive_url": "/{archive_format}{/ref}",
    "downloads_url": "/downloads",
    "issues_url": "/issues{/number}",
    "pulls_url": "/pulls{/number}",
    "milestones_url": "/milestones{/number}",
    "notifications_url": "/notifications{?since,all,participating}",
    "labels_url": "/labels{/name}",
    "releases_url": "/releases{/id}",
    "deployments_url": "/deployments",
}
_PULLS_OWN = (
    *("additions", "deletions", "changed_files", "comments", "commits", "review_comments"),
    *("maintainer_can_modify", "mergeable", "mergeable_state", "merged", "merged_by"),
)
"""Properties that one pull request has and those of a list have not."""


@dataclass(frozen=True)
class Shapes:
    """Of a repository, `api` being where the API is."""

    api: str
    repo: str

    def user(self, login: str) -> Json:
        url = f"{self.api}/users/{login}"
        return {
            "login": login,
            "id": sum(login.encode()),
            "node_id": f"U_{login}",
            "avatar_url": f"{SITE}/{login}.png",
            "gravatar_id": "",
            "url": url,
            "html_url": f"{SITE}/{login}",
            **{name: f"{url}{end}" for name, end in _USERS_LINKS.items()},
            "type": "Bot" if login.endswith("[bot]") else "User",
            "site_admin": False,
        }

    def own_user(self, login: str) -> Json:
        """The token's own user, with what others see of it."""
        unknown = dict.fromkeys(("bio", "company", "email", "hireable", "location", "name"))
        counts = dict.fromkeys(("followers", "following", "public_gists", "public_repos"), 0)
        return {**self.user(login), **unknown, **counts, "blog": "", "created_at": WHEN, "updated_at": WHEN}

    def repository(self, number: int, name: str) -> Json:
        url, page, owner = f"{self.api}/repos/{name}", f"{SITE}/{name}", name.partition("/")[0]
        return {
            "id": number,
            "node_id": f"R_{number}",
            "name": name.partition("/")[2],
            "full_name": name,
            "owner": self.user(owner),
            "private": True,
            "html_url": page,
            "description": None,
            "fork": False,
            "url": url,
            **{link: f"{url}{end}" for link, end in _REPOSITORYS_LINKS.items()},
            "git_url": f"git://github.com/{name}.git",
            "ssh_url": f"git@github.com:{name}.git",
            "clone_url": f"{page}.git",
            "svn_url": page,
            **dict.fromkeys(("homepage", "language", "mirror_url", "license")),
            **dict.fromkeys(("forks", "open_issues", "watchers"), 0),
            **dict.fromkeys(("forks_count", "open_issues_count", "watchers_count", "stargazers_count"), 0),
            **dict.fromkeys(("has_downloads", "has_issues", "has_projects", "has_wiki"), True),
            **dict.fromkeys(("has_pages", "archived", "disabled"), False),
            "size": 1,
            "default_branch": "main",
            **dict.fromkeys(("created_at", "updated_at", "pushed_at"), WHEN),
        }

    def pull(self, number: int, head: str, base: str, fork: str | None) -> Json:
        url, page = f"{self.api}/repos/{self.repo}/pulls/{number}", f"{SITE}/{self.repo}/pull/{number}"
        issue = f"{self.api}/repos/{self.repo}/issues/{number}"
        comments = f"{issue}/comments"
        statuses = f"{self.api}/repos/{self.repo}/statuses/{head}"
        review = {"review_comments": f"{url}/comments", "review_comment": f"{url}/comments{{/number}}"}
        links = {"self": url, "html": page, "issue": issue, "comments": comments, **review}
        links |= {"commits": f"{url}/commits", "statuses": statuses}
        of = fork or self.repo
        from_, into = self.repository(2 if fork else 1, of), self.repository(1, self.repo)
        return {
            "id": number * 10,
            "node_id": f"PR_{number}",
            "number": number,
            "url": url,
            "html_url": page,
            "diff_url": f"{page}.diff",
            "patch_url": f"{page}.patch",
            "issue_url": issue,
            "commits_url": f"{url}/commits",
            "review_comments_url": review["review_comments"],
            "review_comment_url": review["review_comment"],
            "comments_url": comments,
            "statuses_url": statuses,
            "state": "open",
            "locked": False,
            "title": f"change {number}",
            "user": self.user("ada"),
            "body": None,
            "labels": [],
            "milestone": None,
            "assignee": None,
            "created_at": WHEN,
            "updated_at": WHEN,
            "closed_at": None,
            "merged_at": None,
            "merge_commit_sha": f"{number:08x}" + "3" * 32,  # of the merge that GitHub has tried
            "head": self._side(from_, "change", head),
            "base": self._side(into, base, "b" * 40),
            "_links": {name: {"href": each} for name, each in links.items()},
            "author_association": "MEMBER",
            "auto_merge": None,
            **dict.fromkeys(("additions", "deletions", "changed_files", "comments", "commits"), 1),
            "review_comments": 0,
            "maintainer_can_modify": False,
            "mergeable": True,
            "mergeable_state": "clean",
            "merged": False,
            "merged_by": None,
        }

    def permission(self, login: str, permission: str) -> Json:
        return {
            "permission": permission,
            "role_name": permission,
            "user": {**self.user(login), "role_name": permission},
        }

    def environment(self, name: str, reviewed: bool, branches: list[str] | None) -> Json:
        reviewers = [{"type": "User", "reviewer": self.user("ada")}]
        rules: list[Json] = [
            *(
                [{"id": 1, "node_id": "n1", "type": "required_reviewers", "reviewers": reviewers}]
                if reviewed
                else []
            ),
            *([{"id": 2, "node_id": "n2", "type": "branch_policy"}] if branches is not None else []),
        ]
        policy = {"protected_branches": False, "custom_branch_policies": True}
        return {
            "id": 9,
            "node_id": "n9",
            "name": name,
            "url": f"{self.api}/repos/{self.repo}/environments/{name}",
            "html_url": f"{SITE}/{self.repo}/deployments/activity_log?environments_filter={name}",
            "created_at": WHEN,
            "updated_at": WHEN,
            "protection_rules": rules,
            "deployment_branch_policy": None if branches is None else policy,
        }

    def _side(self, repository: Json, branch: str, commit: str) -> Json:
        owner = repository["owner"]
        label = f"{owner['login']}:{branch}"
        return {"label": label, "ref": branch, "sha": commit, "repo": repository, "user": owner}

    def listed(self, pull: Json) -> Json:
        """A pull request as lists have it."""
        return {name: value for name, value in pull.items() if name not in _PULLS_OWN}

    def comment(self, number: int, comment: int, login: str, body: str) -> Json:
        return {
            "id": comment,
            "node_id": f"IC_{comment}",
            "url": f"{self.api}/repos/{self.repo}/issues/comments/{comment}",
            "html_url": f"{SITE}/{self.repo}/pull/{number}#issuecomment-{comment}",
            "issue_url": f"{self.api}/repos/{self.repo}/issues/{number}",
            "body": body,
            "user": self.user(login),
            "created_at": WHEN,
            "updated_at": WHEN,
            "author_association": "NONE",
        }

    def review(self, number: int, review: int, login: str) -> Json:
        """One that approves, of no commit, without words."""
        page, url = f"{SITE}/{self.repo}/pull/{number}", f"{self.api}/repos/{self.repo}/pulls/{number}"
        return {
            "id": review,
            "node_id": f"PRR_{review}",
            "user": self.user(login),
            "body": "",
            "state": "APPROVED",
            "commit_id": None,
            "html_url": f"{page}#pullrequestreview-{review}",
            "pull_request_url": url,
            "_links": {"html": {"href": page}, "pull_request": {"href": url}},
            "submitted_at": WHEN,
            "author_association": "MEMBER",
        }

    def issue(self, number: int, login: str, title: str, body: str, labels: list[str]) -> Json:
        url = f"{self.api}/repos/{self.repo}/issues/{number}"
        return {
            "id": number + 5000,
            "node_id": f"I_{number}",
            "number": number,
            "url": url,
            "repository_url": f"{self.api}/repos/{self.repo}",
            "labels_url": f"{url}/labels{{/name}}",
            "comments_url": f"{url}/comments",
            "events_url": f"{url}/events",
            "html_url": f"{SITE}/{self.repo}/issues/{number}",
            "title": title,
            "body": body,
            "state": "open",
            "locked": False,
            "user": self.user(login),
            "labels": [self.label(each) for each in labels],
            "assignee": None,
            "milestone": None,
            "comments": 0,
            "created_at": WHEN,
            "updated_at": WHEN,
            "closed_at": None,
            "author_association": "NONE",
        }

    def label(self, name: str) -> Json:
        return {
            "id": 1,
            "node_id": "LA_1",
            "url": f"{self.api}/repos/{self.repo}/labels/{name}",
            "name": name,
            "description": None,
            "color": "ededed",
            "default": False,
        }

    def check(self, check: int, name: str, head: str) -> Json:
        return {
            "id": check,
            "node_id": f"CR_{check}",
            "name": name,
            "head_sha": head,
            "url": f"{self.api}/repos/{self.repo}/check-runs/{check}",
            "html_url": f"{SITE}/{self.repo}/runs/{check}",
            "details_url": f"{SITE}/{self.repo}/runs/{check}",
            "external_id": "",
            "status": "queued",
            "conclusion": None,
            "started_at": WHEN,
            "completed_at": None,
            "check_suite": {"id": 1},
            "app": None,
            "pull_requests": [],
            "output": {
                **dict.fromkeys(("title", "summary", "text")),
                "annotations_url": f"{self.api}/repos/{self.repo}/check-runs/{check}/annotations",
                "annotations": [],
            },
        }
