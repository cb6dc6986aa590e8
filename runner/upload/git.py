"""The `git` of this machine: how it is called, and what it says as errors.

It never asks a person, runs no hook, and uses the caller's SSH agent, keys and credential helpers.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orch.runner.errors import BadTask

_USERINFO = re.compile(r"(?:(?<=https://)|(?<=http://))[^/@\s]*@|(?<=://)[^/@\s:]*:[^/@\s]*@")
_REFUSED = re.compile(
    r"Authentication failed|could not read (Username|Password)|Permission denied|terminal prompts disabled"
    r"|[Rr]epository .*not found|HTTP Basic: Access denied|returned error: 40[134]|Invalid username or",
)
# Said after every error of ssh.
_GENERAL = "Could not read from remote repository"
_NO_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false")


def redacted(url: str) -> str:
    """A URL without a user and a password; a user of SSH alone stays, it is no secret."""
    return _USERINFO.sub("", url)


def run_git(words: Sequence[str], folder: Path | None, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in _OF_OTHERS}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **more}
    settings = [word for setting in _NO_SETTINGS for word in ("-c", setting)]
    return subprocess.run(
        ["git", *settings, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
    )


# Set where git itself starts a program, such as a hook that calls orch.
_OF_OTHERS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX"})


def git(words: Sequence[str], folder: Path | None, **more: str) -> str:
    done = run_git(words, folder, **more)
    if done.returncode:
        raise BadTask(
            "the repository cannot be read", detail=told(done.stderr), hint="does `git status` work in it?"
        )
    return done.stdout


def ask_remote(words: Sequence[str], label: str) -> str:
    """What git says of a remote. Never asks a person. Raises BadTask."""
    ssh = (
        {}
        if {"GIT_SSH_COMMAND", "GIT_SSH"} & os.environ.keys()
        else {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    )
    done = run_git(words, None, **ssh)
    if not done.returncode:
        return done.stdout
    if "couldn't find remote ref" in done.stderr or "not our ref" in done.stderr:
        missing = done.stderr.strip().rpartition(" ")[2].removeprefix("refs/heads/")
        raise BadTask(
            f"the repository {label} has no branch or commit {missing}",
            hint="is it pushed, and spelt as it is there?",
        )
    if _REFUSED.search(done.stderr):
        raise BadTask(
            f"the repository {label} refuses you",
            detail=told(done.stderr),
            hint="add your key to the SSH agent, or a credential helper to git: "
            f"`git ls-remote {label}` works then",
        )
    raise BadTask(
        f"the repository {label} cannot be reached",
        detail=told(done.stderr),
        hint=f"does `git ls-remote {label}` work on this machine?",
    )


def told(stderr: str) -> str | None:
    """The line of git's, or of its ssh's, that tells the most, without credentials."""
    lines = [redacted(line) for line in stderr.strip().splitlines() if _GENERAL not in line]
    causes = [line for line in lines if re.search(r"denied|failed|refused|not found|timed out", line)]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:"))]
    return (causes or telling or lines or [None])[0]
