"""Which cluster, and who we are there: by a kubeconfig as `kubectl` reads it, or as a pod of the cluster.

The rules are kubectl's (kubernetes.io, "Organizing Cluster Access Using kubeconfig Files"): the files of
KUBECONFIG are merged and the first that says something wins, paths are relative to the file that has them,
data goes before files. Credentials of an exec plugin are kept until they expire, then fetched again, and once
more when the server does not take them. No key is written to a disk.
"""

from __future__ import annotations

import base64
import os
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orch.runner.kubernetes.credentials import (
    REREAD_S,
    Cluster,
    Credentials,
    Doc,
    Source,
    from_auth_provider,
    load_pair,
    run_plugin,
)
from orch.runner.kubernetes.errors import BadKubeconfig, CredentialsUnavailable
from orch.runner.kubernetes.kubeconfig import cluster_of, kubeconfig_files, merge_files
from orch.spec.confidential import remember

OWN_CLUSTER = "this pod's cluster"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Login:
    """A cluster and a user of it. Thread-safe; credentials are fetched when first needed.

    `name`: the context, for people; `namespace`: that of the context; `user`: the kubeconfig's name of the
    user.
    """

    def __init__(
        self,
        cluster: Cluster,
        user: Doc,
        *,
        name: str,
        user_name: str,
        namespace: str | None,
        source: Source,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.user = user_name
        self.namespace = namespace
        self._user = user
        self._source = source
        self._guard = threading.Lock()
        self._credentials: Credentials | None = None
        self._tls: tuple[Credentials, ssl.SSLContext] | None = None

    @property
    def context(self) -> str | None:
        """The context of the kubeconfig; None for the cluster that this process is a pod of."""
        return None if self.name == OWN_CLUSTER else self.name

    @property
    def where(self) -> str:
        """The cluster, for messages."""
        return f"{self.name} ({self.cluster.server})"

    def credentials(self, *, refused: Credentials | None = None) -> Credentials:
        """What to show now; other ones than the `refused`, where others can be had.

        Raises BadKubeconfig, CredentialsUnavailable.
        """
        with self._guard:
            now = self._credentials
            expired = now is not None and now.until is not None and time.time() >= now.until
            if now is None or expired or (refused is not None and refused is now and self._renewable):
                now = self._credentials = self._fetch()
                remember(
                    text
                    for text in (
                        (now.authorization or "").partition(" ")[2],
                        (now.key or b"").decode(errors="replace"),
                    )
                    if text
                )
            return now

    def tls(self) -> ssl.SSLContext | None:
        """How the connection is encrypted, the same object while nothing changed; None for http://.

        Raises BadKubeconfig, CredentialsUnavailable.
        """
        if self.cluster.url.scheme != "https":
            return None
        shown = self.credentials()
        with self._guard:
            kept = self._tls
            same = kept is not None and (kept[0].certificate, kept[0].key) == (shown.certificate, shown.key)
            if kept is None or not same:
                kept = self._tls = (shown, self._context(shown))
            return kept[1]

    @property
    def _renewable(self) -> bool:
        return any(word in self._user for word in ("exec", "tokenFile", "auth-provider"))

    def _context(self, shown: Credentials) -> ssl.SSLContext:
        cluster = self.cluster
        try:
            context = ssl.create_default_context(cadata=cluster.ca)
        except (ssl.SSLError, ValueError) as error:
            raise self._source.bad(
                "the cluster's certificate authority is no certificate",
                detail=str(error),
                hint="`certificate-authority-data` is a certificate in PEM, in base64",
            ) from error
        # As kubectl: authorities of clusters lack what RFC 5280 wants (key identifiers), and any certificate
        # that is given is trusted, a root or not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if cluster.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if shown.certificate is not None and shown.key is not None:
            try:
                load_pair(context, shown.certificate, shown.key)
            except (ssl.SSLError, OSError, ValueError) as error:
                raise self._source.bad(
                    f"the certificate of user {self.user} cannot be used",
                    detail=str(error),
                    hint="both have to be PEM and belong together, the key without a passphrase",
                ) from error
        return context

    def _fetch(self) -> Credentials:
        user, source = self._user, self._source
        certificate = source.data(user, "client-certificate")
        key = source.data(user, "client-key")
        if (certificate is None) != (key is None):
            raise source.bad(
                f"user {self.user} has a certificate without its key, or a key without its certificate",
                hint="both of `client-certificate` and `client-key`, or their `-data`",
            )
        if token := str(user.get("token") or ""):
            return Credentials(f"Bearer {token}", certificate, key)
        if path := str(user.get("tokenFile") or ""):
            token = source.read(path, "the token of the user").decode(errors="replace").strip()
            if not token:
                raise CredentialsUnavailable(f"the file of the token is empty: {path}", where=source.where)
            return Credentials(f"Bearer {token}", certificate, key, time.time() + REREAD_S)
        if isinstance(plugin := user.get("exec"), Mapping):
            return run_plugin(plugin, self.cluster, source)
        if "username" in user and "password" in user:
            remember([str(user["password"])])
            pair = f"{user['username']}:{user['password']}".encode()
            return Credentials(f"Basic {base64.b64encode(pair).decode()}", certificate, key)
        if isinstance(provider := user.get("auth-provider"), Mapping):
            return from_auth_provider(str(provider.get("name")), self.name, source)
        return Credentials(None, certificate, key)


def log_in(kubeconfig: str | None = None, context: str | None = None) -> Login:
    """The cluster and user of a context: of the file `kubeconfig`, else of KUBECONFIG or ~/.kube/config.

    Without `context` it is the current one; where there is no kubeconfig, and this process is a pod's, the
    cluster is the pod's own. Raises BadKubeconfig; no program runs and nothing is asked yet.
    """
    files = kubeconfig_files(kubeconfig)
    source = Source(files)
    document = merge_files(files, must=kubeconfig is not None, source=source)
    if document is None or (context is None and not document.contexts and _in_cluster()):
        if context is None and _in_cluster():
            return _own_pod()
        raise BadKubeconfig(
            "there is no kubeconfig",
            where=source.where,
            detail=f"context {context} was asked for" if context is not None else None,
            hint="write one as your cluster's provider says (`aws eks update-kubeconfig`, `gcloud container "
            "clusters get-credentials`), or name it: `kubeconfig: {filename: …}`",
        )
    name = context if context is not None else document.current
    if not name:
        raise source.bad(
            "no context was chosen, and the kubeconfig has no current one",
            hint=f"name one of: {', '.join(sorted(document.contexts)) or 'there is none'}",
        )
    if name not in document.contexts:
        raise source.bad(
            f"the kubeconfig has no context {name}",
            hint=f"it has: {', '.join(sorted(document.contexts)) or 'none'}",
        )
    chosen, _ = document.contexts[name]
    cluster_name, user_name = str(chosen.get("cluster") or ""), str(chosen.get("user") or "")
    if cluster_name not in document.clusters:
        raise source.bad(f"context {name} names cluster {cluster_name!r}, which is not there")
    if user_name and user_name not in document.users:
        raise source.bad(f"context {name} names user {user_name!r}, which is not there")
    cluster, cluster_file = document.clusters[cluster_name]
    user, user_file = document.users.get(user_name, ({}, cluster_file))
    return Login(
        cluster_of(cluster_name, cluster, Source(files, cluster_file)),
        user,
        name=name,
        user_name=user_name or "(anonymous)",
        namespace=str(chosen["namespace"]) if chosen.get("namespace") else None,
        source=Source(files, user_file),
    )


def _in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def _own_pod() -> Login:
    """The cluster that this process is a pod of, as the pod's service account."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    source = Source((SERVICE_ACCOUNT,), SERVICE_ACCOUNT / "token")
    namespace = None
    with suppress(OSError):
        namespace = (SERVICE_ACCOUNT / "namespace").read_text("utf-8").strip() or None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Login(
        Cluster(server, ca=source.read("ca.crt", "the cluster's certificate authority").decode()),
        {"tokenFile": "token"},
        name=OWN_CLUSTER,
        user_name="the pod's service account",
        namespace=namespace,
        source=source,
    )
