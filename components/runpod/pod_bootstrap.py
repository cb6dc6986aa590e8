"""What a pod runs as its first process, so that the runner can log in: clouds whose containers are the nodes.

A pod has the job's own image, and its cloud starts no SSH server in it. `bootstrap` is the shell text that
does, `arguments` and `docker_arguments` are the forms in which such clouds take a command.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence

from orch.templates import render

_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n]*)?")


def bootstrap(
    authorized_keys: Sequence[str],
    *,
    host_key: str | None = None,
    image: str | None = None,
    hidden: Sequence[str] = (),
    port: int = 22,
) -> str:
    """POSIX sh text for PID 1 of a pod, as root: installs what is missing, runs sshd, never ends.

    `authorized_keys`: public keys of who may log in as root. `host_key`: the private host key as OpenSSH's
    file (`host_keys.private_host_key`); it can be read where the cloud shows a pod's command. Without one the
    pod makes its own, and says `orch: host key ssh-ed25519 AAAA…` in its log. `image`: the pod's, so that a
    run that asks for another is refused. `hidden`: names of variables of the pod that no job gets.
    Raises ValueError for what is no public key.
    """
    for key in authorized_keys:
        if not _PUBLIC_KEY.fullmatch(key.strip()):
            raise ValueError("authorized_keys takes public keys, one a line, as in a .pub file")
    return render(
        "pod-bootstrap.sh.j2",
        authorized=[key.strip() for key in authorized_keys],
        host_key=host_key or "",
        image=image or "",
        hidden="|".join(hidden),
        port=port,
    )


def arguments(text: str) -> str:
    """`text` as the one string of a container's command, without a character that who splits it could expand.

    It reaches an image's entrypoint as its arguments; one that does not run them swallows it.
    """
    return f"sh -c '{_first(text)}'"


def docker_arguments(text: str) -> str:
    """`text` as the JSON that replaces an image's entrypoint too.

    Source: dstack runpod/compute.py, `dockerArgs` of RunPod's GraphQL; not documented for its REST v2.
    """
    return json.dumps({"cmd": [_first(text)], "entrypoint": ["/bin/sh", "-c"]})


def _first(text: str) -> str:
    """Has `text` run from a file: what `ps` shows of the first process must not have the host key."""
    code = base64.b64encode(text.encode()).decode()
    file = "/var/lib/orch/first.sh"
    return f"mkdir -p {file.rpartition('/')[0]}; (umask 077; echo {code} | base64 -d >{file}); exec sh {file}"
