"""The identity of a cluster, whatever leads to it, as a text that is recorded and compared.

`UID+server/DIGEST`: the UID of its namespace kube-system, which is created once and never deleted, and a
digest of the address and the authority of its API server. A user who may not read the UID has the second
alone; older records have the first alone.
Source: Kubernetes SIG Multicluster, KEP-2149, on `cluster.clusterset.k8s.io`.
"""

from __future__ import annotations

import hashlib

from orch.runner.kubernetes.credentials import Cluster

_SERVER = "server/"


def identity_of(uid: str | None, cluster: Cluster) -> str:
    """Return the text. `uid` None: it may not be read."""
    ca = "".join((cluster.ca or "").split())
    named = f"{cluster.url.scheme}://{address_of(cluster)} {ca}"
    server = f"{_SERVER}{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    return f"{uid}+{server}" if uid else server


def address_of(cluster: Cluster) -> str:
    """Return the host, port and path of the API server."""
    url = cluster.url
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"{(url.hostname or '').lower()}:{port}{url.path.rstrip('/')}"


def difference(known: str, found: str) -> str | None:
    """Return how the recorded identity differs from that of the cluster now, for people; None if it does not,
    or if the two have nothing that can be compared.

    UIDs decide: one cluster may be reached at several addresses.
    """
    (known_uid, known_server), (uid, server) = _parts(known), _parts(found)
    if known_uid and uid:
        words = f"the namespace kube-system has the UID {uid}, that of the fleet's {known_uid}"
        return words if known_uid != uid else None
    if known_server and server and known_server != server:
        return (
            "its server has another address or certificate authority than the fleet's had, and the UID of "
            "the namespace kube-system, which would tell, may not be read"
        )
    return None


def joined(known: str | None, found: str | None) -> str | None:
    """Return what is recorded, with what was found and is not recorded yet."""
    (uid, server), (found_uid, found_server) = _parts(known or ""), _parts(found or "")
    return "+".join(part for part in (uid or found_uid, server or found_server) if part) or None


def _parts(text: str) -> tuple[str, str]:
    parts = text.split("+") if text else []
    uid = next((part for part in parts if not part.startswith(_SERVER)), "")
    return uid, next((part for part in parts if part.startswith(_SERVER)), "")
