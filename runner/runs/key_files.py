"""Files that look like keys or credentials: by their names, and small ones by how they begin."""

from __future__ import annotations

import re
from pathlib import Path

_NAMES = re.compile(
    r"""
      \.env(\.(?!example$|sample$|template$|dist$).+)?
    | id_(rsa|dsa|ecdsa|ed25519)(_sk)? | .+\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk)
    | [._]netrc | \.pgpass | \.pypirc | \.npmrc | \.git-credentials | \.htpasswd | \.dockercfg
    | credentials(\.json)? | client_secret.*\.json | service[_-]?account.*\.json | kubeconfig
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CONTENTS = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File|\"private_key\"\s*:\s*\"-----"
)

LARGEST = 1 << 16
"""No key is larger, in bytes."""

_READ = 4096


def looks_like_a_key(path: Path, size: int) -> bool:
    """Whether a file of `size` bytes does. One that cannot be read does not."""
    if _NAMES.fullmatch(path.name):
        return not path.name.lower().endswith(".pub.pem")
    if size > LARGEST:
        return False
    try:
        with path.open("rb") as stream:
            return bool(_CONTENTS.search(stream.read(_READ)))
    except OSError:
        return False
