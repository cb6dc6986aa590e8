"""The way to an API server: connections, through a proxy or not, and why none comes about."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NameResolutionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.util import parse_url

from orch.runner.kubernetes.errors import CertificateRefused, ClusterUnreachable, shortened
from orch.runner.kubernetes.login import Login

CONNECT_S = 10.0

# A connection over which nothing comes is found dead after about a minute.
KEEP_ALIVE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


def unreachable(login: Login, error: BaseException) -> ClusterUnreachable:
    """Why no API server answers: each way to fail has its own sentence, for the remedy differs."""
    cluster, where = login.cluster, login.where
    host = f"{cluster.url.hostname} port {cluster.url.port or (443 if cluster.url.scheme == 'https' else 80)}"
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CertificateRefused(
                f"the certificate of the API server at {host} is not trusted",
                where=where,
                detail=cause.verify_message or str(cause),
                hint=_certificate_hint(cause.verify_message or "", cluster.ca is not None),
            )
    text = next(
        (shortened(_plain(cause)) for cause in reversed(causes) if _plain(cause)), type(error).__name__
    )
    if isinstance(error, ProxyError) or any(isinstance(cause, ProxyError) for cause in causes):
        return ClusterUnreachable(
            f"the proxy on the way to the API server at {host} gives no connection",
            where=where,
            detail=text,
            hint="`proxy-url` of the kubeconfig, else HTTPS_PROXY, names it; NO_PROXY leaves the cluster out",
        )
    if any(isinstance(cause, (NameResolutionError, socket.gaierror)) for cause in causes):
        return ClusterUnreachable(
            f"the name of the API server does not resolve: {cluster.url.hostname}",
            where=where,
            detail=text,
            hint="does the cluster still exist, and does DNS know it from this machine or its VPN?",
        )
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return ClusterUnreachable(
            f"the API server at {host} refuses connections",
            where=where,
            hint="is the cluster running, and is `server` of the kubeconfig its address?",
        )
    if any(isinstance(cause, TimeoutError) for cause in causes) and isinstance(error, ConnectTimeoutError):
        return ClusterUnreachable(
            f"the API server at {host} does not answer within {CONNECT_S:.0f} s",
            where=where,
            hint="is the cluster up, and may this machine reach it (VPN, private endpoint)?",
        )
    if any(isinstance(cause, ReadTimeoutError) for cause in causes):
        return ClusterUnreachable(
            f"the API server at {host} took the request and does not answer",
            where=where,
            hint="is it overloaded?",
        )
    if any(isinstance(cause, (SSLError, ssl.SSLError)) for cause in causes):
        return ClusterUnreachable(
            f"no encrypted connection to the API server at {host} comes about",
            where=where,
            detail=text,
            hint="is `server` of the kubeconfig the address of an API server?",
        )
    return ClusterUnreachable(f"the API server at {host} cannot be talked to", where=where, detail=text)


def _certificate_hint(message: str, own_ca: bool) -> str:
    if "expired" in message:
        return (
            "the cluster's certificate, or its authority's, has run out: whoever runs the cluster renews it"
        )
    if "ostname" in message or "IP address" in message:
        return "`server` has to be a name in the certificate; `tls-server-name` says which one to expect"
    if own_ca:
        return (
            "the cluster was made anew, or another server answers: have the kubeconfig written again by your "
            "cluster's provider"
        )
    return "the kubeconfig has no `certificate-authority-data`, and this machine does not trust the server's"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]
        waiting.append(getattr(each, "original_error", None))


def _plain(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rpartition(">: ")[2] or str(error)


def connection_pools(login: Login, tls: object) -> urllib3.PoolManager:
    cluster = login.cluster
    # Where a pool is full, more connections are made and not kept.
    words: dict[str, Any] = {"num_pools": 2, "maxsize": 32, "block": False, "retries": False}
    if tls is not None:
        words["ssl_context"] = tls
        if cluster.tls_server_name:
            words["server_hostname"] = cluster.tls_server_name
    words["socket_options"] = KEEP_ALIVE
    if cluster.insecure:
        # Who wrote the kubeconfig knows.
        urllib3.disable_warnings(InsecureRequestWarning)
    if cluster.proxy:
        return urllib3.ProxyManager(cluster.proxy, proxy_headers=proxy_headers(cluster.proxy), **words)
    return urllib3.PoolManager(**words)


def proxy_headers(proxy: str) -> dict[str, str]:
    """What logs in to a proxy, by the user and password of its URL."""
    url = parse_url(proxy)
    if not url.auth:
        return {}
    return dict(urllib3.make_headers(proxy_basic_auth=unquote(url.auth)))


def dial(login: Login, timeout_s: float) -> socket.socket:
    """A connection to the API server over which nothing was said yet, encrypted where its URL is https://.

    Raises ClusterUnreachable, and what logging in raises.
    """
    cluster, tls = login.cluster, login.tls()
    host, port = (
        cluster.url.hostname or "",
        cluster.url.port or (443 if cluster.url.scheme == "https" else 80),
    )
    place = (host, port)
    if cluster.proxy:
        proxy = parse_url(cluster.proxy)
        place = (proxy.host or "", proxy.port or 80)
    words: dict[str, Any] = {"timeout": timeout_s, "socket_options": KEEP_ALIVE}
    if tls is not None:
        words |= {"ssl_context": tls, "server_hostname": cluster.tls_server_name or host}
    made = (HTTPConnection if tls is None else HTTPSConnection)(*place, **words)
    if cluster.proxy:
        made.set_tunnel(host, port, proxy_headers(cluster.proxy), scheme="http")
    try:
        made.connect()
    except (HTTPError, OSError) as error:
        made.close()
        if cluster.proxy and not any(isinstance(cause, ssl.SSLError) for cause in _causes(error)):
            error = ProxyError(str(error), error)
        raise unreachable(login, error) from error
    assert made.sock is not None
    return made.sock
