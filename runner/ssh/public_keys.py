"""Public keys of hosts: given, pinned, in the user's known_hosts, or asked of the host itself.

Asking is a key exchange without a log-in; what it brings is shown to a person and accepted with a plan.
"""

from __future__ import annotations

import re

from orch.runner.errors import HostKeyRefused, HostKeyUnaccepted, HostUnreachable
from orch.runner.ssh.endpoint import SshEndpoint, read_host_key
from orch.runner.ssh.host_keys import HostKey
from orch.runner.ssh.login import ask_host_key
from orch.runner.ssh.pool import Patience, SshConnector

ACCEPT = (
    "compare with the host's own (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then accept: "
    "`orch up FILE` on a terminal asks, `--accept-new-host-keys` takes every new one; a `host_key` in the "
    "file and your known_hosts count too"
)
"""What to do about a key that nobody has accepted."""


def host_key_from_file(peer: SshEndpoint, text: str) -> HostKey:
    """A key as the fleet file gives it, with or without a host before and a comment behind it.

    Raises HostKeyRefused.
    """
    match = re.search(r"(?:^|\s)((?:ssh|ecdsa|sk)-[\w@.-]+\s+[A-Za-z0-9+/=]{40,})", text)
    public = " ".join(match.group(1).split()) if match else text
    try:
        read_host_key(SshEndpoint(peer.kind, peer.name, peer.address, peer.port, peer.user, None, public))
    except HostKeyRefused as error:
        raise HostKeyRefused(
            f"the `host_key` of {peer.label} is not a public key",
            where=peer.where,
            hint="write it as in known_hosts: `ssh-ed25519 AAAA…`; `ssh-keyscan HOST` shows it",
            code="ORCH363",
        ) from error
    return HostKey(public, "given")


def scan(connector: SshConnector, peer: SshEndpoint, patience: Patience) -> HostKey:
    """Ask a host for its key, Ed25519 if it has one, directly or by way of its jump hosts.

    Raises HostUnreachable, and what a jump host on the way refuses.
    """
    with connector.stream_to(peer, patience) as stream:
        key = ask_host_key(peer, stream, patience.for_connect)
    return HostKey(f"{key.get_name()} {key.get_base64()}", "scanned")


def unknown_key(peer: SshEndpoint, offered: HostKey | HostUnreachable) -> HostKeyRefused:
    """The error for `known_hosts: strict` and a host whose key nothing tells."""
    if isinstance(offered, HostKey):
        detail = f"it offers {offered.public.split()[0]} {offered.fingerprint}"
        hint = f'compare that with the host\'s own; then write `host_key: "{offered.public}"`'
    else:
        detail = f"it could not be asked either: {offered.summary}"
        hint = "give its `host_key`, or connect once with ssh and accept it"
    return HostKeyRefused(
        f"no host key is known for {peer.label}, and `known_hosts` is `strict`",
        where=peer.where,
        detail=detail,
        hint=hint,
        code="ORCH363",
    )


def unaccepted_key(peer: SshEndpoint, offered: HostKey, host: str) -> HostKeyUnaccepted:
    """The error for a host whose key nothing tells and nobody has accepted; `host`: what it is pinned as."""
    return HostKeyUnaccepted(
        f"not looked at: nobody has accepted the host key of {peer.label}",
        host=host,
        key=offered.public,
        fingerprint=offered.fingerprint,
        where=peer.where,
        detail=f"it offers {offered.public.split()[0]} {offered.fingerprint}",
        hint=ACCEPT,
        code="ORCH388",
    )
