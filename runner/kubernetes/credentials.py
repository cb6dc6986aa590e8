"""Credentials of a user of a kubeconfig: those of its exec plugin or auth provider, and its certificate.

An exec plugin follows client-go's contract (kubernetes.io, "client-go credential plugins").
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from orch.runner.kubernetes.errors import BadKubeconfig, CredentialsUnavailable, shortened

# A token of a file is rotated there; client-go reads it again as often.
REREAD_S = 60.0
# Credentials are fetched this long before they expire: a request has to arrive with them.
EARLY_S = 60.0
PLUGIN_S = 120.0

_FRACTION = re.compile(r"\.\d+")
_EXEC_API = "client.authentication.k8s.io/"

Doc = Mapping[str, Any]


@dataclass(frozen=True)
class Cluster:
    """An API server. `ca`: what signs its certificate, PEM; None: what this machine trusts.

    `proxy`: the URL of the proxy on the way there, from the kubeconfig or the environment.
    """

    server: str
    ca: str | None = None
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None

    @property
    def url(self) -> SplitResult:
        return urlsplit(self.server)


@dataclass(frozen=True)
class Credentials:
    """What a request shows. `until`: when it expires (seconds since 1970), None where nobody says."""

    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    until: float | None = None


@dataclass(frozen=True)
class Source:
    """The files of a kubeconfig, and the one of them that a part of it comes from."""

    files: tuple[Path, ...]
    file: Path | None = None

    @property
    def where(self) -> str:
        return str(self.file) if self.file is not None else os.pathsep.join(map(str, self.files))

    def bad(self, summary: str, *, detail: str | None = None, hint: str | None = None) -> BadKubeconfig:
        return BadKubeconfig(summary, where=self.where, detail=detail, hint=hint)

    def data(self, part: Doc, name: str) -> bytes | None:
        """`NAME-data` (base64), else the content of the file `NAME`. Raises BadKubeconfig."""
        if text := part.get(f"{name}-data"):
            try:
                return base64.b64decode(str(text), validate=False)
            except (binascii.Error, ValueError) as error:
                raise self.bad(f"{name}-data is not base64", detail=str(error)) from error
        return self.read(str(part[name]), name) if part.get(name) else None

    def read(self, path: str, what: str) -> bytes:
        """A file, relative to the one that names it. Raises BadKubeconfig."""
        whole = (self.file.parent if self.file is not None else Path()) / Path(path).expanduser()
        try:
            return whole.read_bytes()
        except OSError as error:
            raise self.bad(
                f"{what} cannot be read: {whole}",
                detail=error.strerror or str(error),
                hint="is the file there, and readable for you?",
            ) from error


def run_plugin(plugin: Doc, cluster: Cluster, source: Source) -> Credentials:
    """What an exec plugin gives (client-go credential plugins, `client.authentication.k8s.io`).

    It gets no terminal: nobody may be there to answer. Raises BadKubeconfig, CredentialsUnavailable.
    """
    command, version = str(plugin.get("command") or ""), str(plugin.get("apiVersion") or "")
    if not command or not version.startswith(_EXEC_API):
        raise source.bad(
            "the exec plugin of the user has no command, or no apiVersion that is known",
            hint=f"apiVersion is {_EXEC_API}v1 or {_EXEC_API}v1beta1",
        )
    if plugin.get("interactiveMode") == "Always":
        raise source.bad(
            f"the exec plugin {command} wants a person at a terminal (interactiveMode: Always)",
            hint="orch asks it in the background: take a plugin or a token that works without",
        )
    if "/" in command and source.file is not None:
        command = str(source.file.parent / Path(command).expanduser())
    program = shutil.which(command)
    if program is None:
        raise CredentialsUnavailable(
            f"the exec plugin of the kubeconfig is not installed: {command}",
            where=source.where,
            detail=shortened(plugin.get("installHint")) or None,
            hint="install it as your cluster's provider says, and have it on PATH",
        )
    words = [str(word) for word in plugin.get("args") or ()]
    environment = dict(os.environ)
    environment |= {
        str(row.get("name")): str(row.get("value"))
        for row in plugin.get("env") or ()
        if isinstance(row, Mapping)
    }
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo") is True:
        spec["cluster"] = _cluster_info(cluster)
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(request)
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=PLUGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CredentialsUnavailable(
            f"the exec plugin {command} gives no credentials within {PLUGIN_S:.0f} s",
            where=source.where,
            hint="does it wait for somebody? Run it by hand, or log in first as it wants",
        ) from None
    except OSError as error:
        raise CredentialsUnavailable(
            f"the exec plugin {command} does not start",
            where=source.where,
            detail=error.strerror or str(error),
        ) from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise CredentialsUnavailable(
            f"the exec plugin {command} fails with exit code {done.returncode}",
            where=source.where,
            detail="\n".join(shortened(said[-1200:]).splitlines()[-8:]) or None,
            hint=f"`{' '.join([command, *words])}` by hand tells more; are you logged in there?",
        )
    return _of_plugin(done.stdout, command, version, source)


def _of_plugin(output: bytes, command: str, version: str, source: Source) -> Credentials:
    try:
        document = json.loads(output)
        status = document["status"]
        told = str(document.get("apiVersion") or "")
        if not isinstance(status, dict) or document.get("kind") != "ExecCredential":
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        # Its output is not shown: it may be a token.
        raise CredentialsUnavailable(
            f"the exec plugin {command} writes no ExecCredential",
            where=source.where,
            hint="is it a plugin for Kubernetes, and is nothing else written to its stdout?",
        ) from None
    if told != version:
        raise CredentialsUnavailable(
            f"the exec plugin {command} answers as {told}, and the kubeconfig asks for {version}",
            where=source.where,
            hint="update the plugin, or have the kubeconfig written again",
        )
    token = str(status.get("token") or "")
    certificate, key = (str(status.get(name) or "") for name in ("clientCertificateData", "clientKeyData"))
    if not token and not (certificate and key):
        raise CredentialsUnavailable(
            f"the exec plugin {command} gives neither a token nor a certificate with its key",
            where=source.where,
        )
    until = None
    if expires := status.get("expirationTimestamp"):
        try:
            until = datetime.fromisoformat(_FRACTION.sub("", str(expires)).replace("Z", "+00:00"))
        except ValueError:
            raise CredentialsUnavailable(
                f"the exec plugin {command} gives a time that is none: {shortened(expires)!r}",
                where=source.where,
            ) from None
        if until.tzinfo is None:
            until = until.replace(tzinfo=timezone.utc)
        # One that lives shorter is used while it lives, or each request would ask for another.
        lives = until.timestamp() - time.time()
        until = until.timestamp() - min(EARLY_S, lives / 2)
    pair = (certificate.encode(), key.encode()) if certificate and key else (None, None)
    return Credentials(f"Bearer {token}" if token else None, *pair, until)


def _cluster_info(cluster: Cluster) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.server}
    if cluster.ca is not None:
        info["certificate-authority-data"] = base64.b64encode(cluster.ca.encode()).decode()
    if cluster.insecure:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.proxy:
        info["proxy-url"] = cluster.proxy
    return info


def from_auth_provider(provider: str, context: str, source: Source) -> Credentials:
    """The token of an `auth-provider`, which the official client refreshes and keeps.

    Raises BadKubeconfig, CredentialsUnavailable.
    """
    if provider != "oidc":
        raise source.bad(
            f"the auth provider {provider} is not supported",
            hint="it was removed from Kubernetes; an exec plugin takes its place (gke-gcloud-auth-plugin)",
        )
    try:
        from kubernetes import client, config  # pyright: ignore
    except ImportError as error:
        raise CredentialsUnavailable(
            "the auth provider oidc needs the official client of Kubernetes",
            where=source.where,
            hint="pip install 'kubernetes>=34,<37'; or take an exec plugin (kubelogin)",
        ) from error
    settings = client.Configuration()  # pyright: ignore
    try:
        config.load_kube_config(
            os.pathsep.join(map(str, source.files)), context=context, client_configuration=settings
        )
    except Exception as error:  # what that client raises here is not documented
        raise CredentialsUnavailable(
            "the auth provider oidc gives no token", where=source.where, detail=shortened(error)
        ) from error
    token = settings.api_key.get("BearerToken")
    if not token:
        raise CredentialsUnavailable(
            "the auth provider oidc gives no token", where=source.where, hint="log in again, as it wants it"
        )
    return Credentials(token, until=time.time() + REREAD_S)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """OpenSSL reads a key from a file alone: of memory where the system has such files, else one that is gone
    at once."""
    content = certificate.rstrip() + b"\n" + key.rstrip() + b"\n"

    def no_passphrase() -> str:
        raise ValueError("its key is encrypted, and nobody is asked for the passphrase")

    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("orch-key")
        try:
            os.write(descriptor, content)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=no_passphrase)
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.pem"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        context.load_cert_chain(path, password=no_passphrase)
