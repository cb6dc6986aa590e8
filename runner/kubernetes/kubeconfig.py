"""Kubeconfig files, merged as kubectl does (kubernetes.io, "Cluster Access Using kubeconfig Files").

The first file that says something wins, paths are relative to the file that has them, data goes before files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import yaml

from orch.runner.kubernetes.credentials import Cluster, Doc, Source
from orch.runner.kubernetes.errors import BadKubeconfig
from orch.spec.confidential import remember


def context_names(kubeconfig: str | None = None) -> tuple[str, ...] | None:
    """The contexts of a kubeconfig, by name; None where there is none. Files are found as by `log_in`.

    Raises BadKubeconfig.
    """
    files = kubeconfig_files(kubeconfig)
    document = merge_files(files, must=kubeconfig is not None, source=Source(files))
    return None if document is None else tuple(sorted(document.contexts))


@dataclass
class _Document:
    """A merged kubeconfig: each part with the file it is from."""

    current: str = ""
    contexts: dict[str, tuple[Doc, Path]] = field(default_factory=dict)
    clusters: dict[str, tuple[Doc, Path]] = field(default_factory=dict)
    users: dict[str, tuple[Doc, Path]] = field(default_factory=dict)


def kubeconfig_files(kubeconfig: str | None) -> tuple[Path, ...]:
    """The file `kubeconfig`, else those of KUBECONFIG or ~/.kube/config."""
    if kubeconfig is not None:
        return (Path(kubeconfig).expanduser(),)
    if listed := os.environ.get("KUBECONFIG"):
        return tuple(Path(word).expanduser() for word in listed.split(os.pathsep) if word)
    return (Path("~/.kube/config").expanduser(),)


def merge_files(files: Sequence[Path], *, must: bool, source: Source) -> _Document | None:
    """None where none of the files is there. Raises BadKubeconfig."""
    whole: _Document | None = None
    for file in files:
        try:
            text = file.read_text("utf-8")
        except FileNotFoundError:
            if must:
                raise source.bad(
                    "the kubeconfig is not there", hint="is the path right? It is relative to the project"
                ) from None
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise BadKubeconfig(
                "the kubeconfig cannot be read",
                where=str(file),
                detail=getattr(error, "strerror", None) or str(error),
                hint="is it a file of text that you may read?",
            ) from error
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(file)
            raise BadKubeconfig(
                # The library's text quotes the line, which may be a token.
                "the kubeconfig is no YAML",
                where=place,
                detail=getattr(error, "problem", None),
                hint="`kubectl config view` reads the same file",
            ) from None
        if document is None:
            continue
        if not isinstance(document, Mapping):
            raise BadKubeconfig("the kubeconfig is no mapping", where=str(file), hint="is it the right file?")
        whole = whole or _Document()
        whole.current = whole.current or str(document.get("current-context") or "")
        for plural, singular, into in (
            ("contexts", "context", whole.contexts),
            ("clusters", "cluster", whole.clusters),
            ("users", "user", whole.users),
        ):
            rows = document.get(plural) or []
            for row in rows if isinstance(rows, list) else [rows]:
                if not isinstance(row, Mapping) or not isinstance(row.get(singular) or {}, Mapping):
                    raise BadKubeconfig(
                        f"`{plural}` of the kubeconfig is no list of `name` and `{singular}`", where=str(file)
                    )
                into.setdefault(str(row.get("name")), (row.get(singular) or {}, file))
    return whole


def cluster_of(name: str, part: Doc, source: Source) -> Cluster:
    server = str(part.get("server") or "").rstrip("/")
    try:
        url = urlsplit(server)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        url, usable = urlsplit(""), False
    if not usable:
        raise source.bad(
            f"the server of cluster {name} is no address: {server!r}", hint="such as https://10.0.0.1:6443"
        )
    insecure = part.get("insecure-skip-tls-verify") is True
    ca = None if insecure else source.data(part, "certificate-authority")
    proxy = str(part.get("proxy-url") or "") or environment_proxy(url)
    return Cluster(
        server,
        ca=ca.decode("utf-8", "replace") if ca is not None else None,
        insecure=insecure,
        tls_server_name=str(part["tls-server-name"]) if part.get("tls-server-name") else None,
        proxy=checked_proxy(proxy, source) if proxy else None,
    )


def checked_proxy(proxy: str, source: Source) -> str:
    """Raises BadKubeconfig for a proxy that cannot be used here."""
    try:
        url = urlsplit(proxy)
        host, port = url.hostname, url.port
    except ValueError:
        url, host, port = urlsplit(""), None, None
    if not host or port == 0:
        raise source.bad(f"the proxy on the way to the cluster is no address: {_without_password(proxy)!r}")
    if url.scheme != "http":
        raise source.bad(
            f"a proxy of {url.scheme}:// is not supported: {_without_password(proxy)}",
            hint="one of http:// that tunnels (CONNECT) is; `proxy-url` of the kubeconfig goes before "
            "HTTPS_PROXY",
        )
    if url.password:
        remember([url.password])
    return proxy


def environment_proxy(url: SplitResult) -> str | None:
    """The proxy that the environment names for a URL, by the rules of Go's http.ProxyFromEnvironment.

    Addresses and networks, domains with their subdomains, `*`, each with a port or without, are left out by
    NO_PROXY; so are this machine's own addresses always.
    """
    names = ("HTTPS_PROXY", "https_proxy") if url.scheme == "https" else ("HTTP_PROXY", "http_proxy")
    proxy = next((text for name in names if (text := os.environ.get(name))), None)
    host = (url.hostname or "").lower().rstrip(".")
    if proxy is None or host == "localhost":
        return None
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    excluded = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    for word in filter(None, (each.strip().lower() for each in excluded.split(","))):
        if word == "*":
            return None
        name, colon, number = word.rpartition(":")
        if colon and number.isdigit() and "]" not in number and name.count(":") == 0:
            if int(number) != port:
                continue
            word = name  # noqa: PLW2901
        if address is not None:
            with suppress(ValueError):
                if address in ip_network(word.strip("[]"), strict=False):
                    return None
            continue
        domain = word.removeprefix("*").lstrip(".")
        if host.endswith(f".{domain}") or (host == domain and not word.startswith(".")):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _without_password(url: str) -> str:
    head, at, rest = url.rpartition("@")
    return f"{head.partition('://')[0]}://…@{rest}" if at else url
