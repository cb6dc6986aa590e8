"""Log-ins to registries of images: where an image comes from, and how a node pulls it as somebody.

Pure. The credential travels as input of the command. On the node it lies in a folder of its own on a file
system in memory, as long as the pull takes.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field

from orch.templates import render

# How Docker's configuration names its own registry, which image names leave out.
HUB, HUB_KEY = "docker.io", "https://index.docker.io/v1/"

_REFUSED = re.compile(
    r"unauthorized|authentication required|incorrect username or password|no basic auth credentials|"
    r"access (to the resource )?is denied|access denied|forbidden",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RegistryLogin:
    """A log-in to `registry` (host and port). `shown`: the user as the file has it, for messages."""

    registry: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    shown: str = ""

    @classmethod
    def of(cls, image: str, username: str, password: str, *, shown: str = "") -> RegistryLogin:
        """A log-in to the registry of an image."""
        return cls(registry_of(image), username, password, shown or username)

    @property
    def configuration(self) -> bytes:
        """Docker's `config.json` with this log-in alone."""
        key = HUB_KEY if self.registry == HUB else self.registry
        auth = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return json.dumps({"auths": {key: {"auth": auth}}}).encode()


def registry_of(image: str) -> str:
    """The registry that an image's name leads to, by Docker's rule: the part before the first `/` where it
    has a dot or a colon or is `localhost`, else Docker's own."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return HUB if first == "index.docker.io" else first
    return HUB


def pull_script(image: str, *, logged_in: bool) -> str:
    """Shell text that pulls an image unless it is there; with `logged_in` it reads the log-in from stdin."""
    return render("node-pull.sh.j2", image=image, logged_in=logged_in)


def is_refusal(message: str) -> bool:
    """Whether a registry let nobody in, by what Docker said."""
    return _REFUSED.search(message) is not None
