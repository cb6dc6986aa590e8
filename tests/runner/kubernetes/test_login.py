"""Which cluster, and who we are there: kubeconfigs as kubectl reads them."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kit.kubernetes.kubeserver import Answer, KubeServer, kube_server, pod, run_command, status

from orch.runner.kubernetes import login as logins
from orch.runner.kubernetes.client import KubernetesClient
from orch.runner.kubernetes.connector import KubernetesConnector
from orch.runner.kubernetes.errors import (
    BadKubeconfig,
    ClusterUnreachable,
    CredentialsUnavailable,
    KubernetesError,
    Unauthorized,
)
from orch.runner.kubernetes.kubeconfig import environment_proxy
from orch.runner.kubernetes.login import log_in
from orch.runner.node_api.commands import Command
from orch.spec.confidential import hidden
from orch.spec.errors import ExitCode
from orch.spec.state import NodeState


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with kube_server(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)


def config(path: Path, **parts: Any) -> Path:
    """A kubeconfig of one cluster; `parts`: what is other than usual."""
    document = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://a.example:6443"}}],
        "users": [{"name": "a", "user": {"token": "token-of-a"}}],
        **{key.replace("_", "-"): value for key, value in parts.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def plugin(folder: Path, script: str, **words: Any) -> dict[str, Any]:
    """A user with an exec plugin, a script of `sh`."""
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    api = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": api, "command": str(path), "interactiveMode": "Never", **words}}


def credential(token: str = "", lives_s: float | None = None, **more: str) -> str:
    """What a plugin that knows its trade writes."""
    state: dict[str, Any] = {**({"token": token} if token else {}), **more}
    if lives_s is not None:
        ends = datetime.now(timezone.utc) + timedelta(seconds=lives_s)
        state["expirationTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%S.123456789Z")
    document = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": state}
    return json.dumps(document)


def test_the_current_context_is_taken_and_another_by_name(tmp_path: Path) -> None:
    other = {"name": "b", "context": {"cluster": "a", "user": "a", "namespace": "team"}}
    path = config(tmp_path / "config", contexts=[{"name": "a", "context": {"cluster": "a"}}, other])
    first, second = log_in(str(path)), log_in(str(path), "b")
    assert (first.name, first.user, first.namespace) == ("a", "(anonymous)", None)
    assert (second.name, second.user, second.namespace) == ("b", "a", "team")
    assert first.credentials().authorization is None
    assert second.credentials().authorization == "Bearer token-of-a"
    assert second.where == "b (https://a.example:6443)"


def test_files_of_kubeconfig_are_merged_and_the_first_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = config(tmp_path / "one", users=[{"name": "a", "user": {"tokenFile": "token"}}])
    (tmp_path / "token").write_text("of-the-first")
    two = config(
        tmp_path / "two" / "config",
        current_context="b",
        contexts=[{"name": "b", "context": {"cluster": "b", "user": "b"}}],
        clusters=[
            {"name": "a", "cluster": {"server": "https://wrong.example"}},
            {"name": "b", "cluster": {"server": "https://b.example"}},
        ],
        users=[{"name": "b", "user": {"tokenFile": "token"}}],
    )
    (tmp_path / "two" / "token").write_text("of-the-second")
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (missing, one, two))))
    assert log_in().name == "a"
    assert log_in().cluster.server == "https://a.example:6443"
    assert log_in().credentials().authorization == "Bearer of-the-first"
    assert log_in(context="b").credentials().authorization == "Bearer of-the-second"


def test_without_a_choice_it_is_the_users_own(tmp_path: Path) -> None:
    config(tmp_path / "home" / ".kube" / "config")
    assert log_in().name == "a"


def test_a_pod_of_the_cluster_is_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: KubeServer
) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("first\n")
    (account / "namespace").write_text("team")
    (account / "ca.crt").write_bytes(server.authority.certificate.read_bytes())
    monkeypatch.setattr(logins, "SERVICE_ACCOUNT", account)
    with pytest.raises(BadKubeconfig, match="there is no kubeconfig"):
        log_in()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    login = log_in()
    assert login.namespace == "team"
    KubernetesClient(login).get("/version")
    assert server.calls[-1].headers["authorization"] == "Bearer first"
    with pytest.raises(BadKubeconfig):
        log_in(context="named")


BROKEN: list[tuple[Any, str, str]] = [
    ("{", "is no YAML", ":1:2"),
    ("- a\n", "is no mapping", ""),
    ("\xff\x00\x01", "is no YAML", ""),
    ({}, "no context was chosen", ""),
    ({"contexts": [{"name": "a", "context": {}}]}, "no context was chosen", "name one of: a"),
    ({"current-context": "x", "contexts": [{"name": "a"}]}, "has no context x", "it has: a"),
    ({"current-context": "a", "contexts": [{"name": "a"}]}, "names cluster ''", ""),
    ({"current-context": "a", "contexts": "a"}, "`contexts` of the kubeconfig is no list", ""),
]


@pytest.mark.parametrize(("text", "said", "more"), BROKEN)
def test_a_kubeconfig_that_cannot_be_used_is_told(tmp_path: Path, text: Any, said: str, more: str) -> None:
    path = tmp_path / "config"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(BadKubeconfig) as caught:
        log_in(str(path))
    assert said in caught.value.text()
    assert more in caught.value.text()
    assert str(path) in (caught.value.where or "")
    assert caught.value.exit_code == ExitCode.CONFIG


def test_a_kubeconfig_that_is_not_there_or_not_readable_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadKubeconfig, match="is not there") as caught:
        log_in(str(tmp_path / "none"))
    assert caught.value.where == str(tmp_path / "none")
    with pytest.raises(BadKubeconfig, match="cannot be read"):
        log_in(str(tmp_path))


PARTS: list[tuple[dict[str, Any], str]] = [
    ({"clusters": [{"name": "a", "cluster": {"server": "a.example"}}]}, "is no address"),
    ({"clusters": [{"name": "a", "cluster": {"server": "https://[::1"}}]}, "is no address"),
    (
        {"clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority": "no"}}]},
        "certificate-authority cannot be read",
    ),
    (
        {"clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "eA"}}]},
        "-data is not base64",
    ),
    (
        {
            "clusters": [
                {"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "eHg="}}
            ]
        },
        "is no certificate",
    ),
    ({"users": [{"name": "a", "user": {"tokenFile": "none"}}]}, "the token of the user cannot be read"),
    (
        {"users": [{"name": "a", "user": {"client-certificate-data": "eHg="}}]},
        "a certificate without its key",
    ),
    (
        {"users": [{"name": "a", "user": {"client-certificate-data": "eHg=", "client-key-data": "eHg="}}]},
        "the certificate of user a cannot be used",
    ),
    ({"users": [{"name": "b", "user": {}}]}, "names user 'a'"),
    ({"users": [{"name": "a", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth provider gcp"),
    (
        {"clusters": [{"name": "a", "cluster": {"server": "https://a", "proxy-url": "socks5://u:p@x:1"}}]},
        "a proxy of socks5:// is not supported: socks5://…@x:1",
    ),
]


@pytest.mark.parametrize(("parts", "said"), PARTS, ids=[said for _, said in PARTS])
def test_what_a_kubeconfig_says_of_cluster_and_user_is_checked(
    tmp_path: Path, parts: dict[str, Any], said: str
) -> None:
    path = config(tmp_path / "config", **parts)
    with pytest.raises(BadKubeconfig) as caught:
        log_in(str(path)).tls()
    assert said in caught.value.text()
    assert caught.value.where == str(path)


def test_an_error_in_a_kubeconfig_shows_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("users:\n- name: a\n  user: {token: very-secret-token\n- x\n")
    with pytest.raises(BadKubeconfig) as caught:
        log_in(str(path))
    assert "very-secret-token" not in caught.value.text()


def test_credentials_are_masked_in_all_that_is_written(tmp_path: Path) -> None:
    log_in(
        str(config(tmp_path / "config", users=[{"name": "a", "user": {"token": "zz-Top-9"}}]))
    ).credentials()
    assert "zz-Top-9" not in hidden("the token is zz-Top-9")


def test_a_certificate_logs_in_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kube_server(tmp_path) as server:
        pair = server.authority.issue("dana", organization="team")
        user = {
            "client-certificate-data": base64.b64encode(pair.certificate.read_bytes()).decode(),
            "client-key": pair.key.name,
        }
        folder = tmp_path / "temporary"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        login = log_in(str(server.kubeconfig(user=user)))
        assert login.tls() is login.tls()
        assert KubernetesClient(login).get("/version") == {}
        assert list(folder.iterdir()) == []
        monkeypatch.delattr(os, "memfd_create")
        seen: list[int] = []
        load = ssl.SSLContext.load_cert_chain

        def watched(context: ssl.SSLContext, path: Path, **words: Any) -> None:
            seen.extend((stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)))
            load(context, path, **words)

        monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
        log_in(str(server.kubeconfig(user=user))).tls()
        assert seen == [0o600, 0o700]
        assert list(folder.iterdir()) == []


def test_a_plugin_is_asked_once_and_again_when_its_token_has_expired(
    tmp_path: Path, server: KubeServer
) -> None:
    asked, answer = tmp_path / "asked", tmp_path / "answer"
    answer.write_text(credential("token-1", lives_s=3600))
    script = f'echo "$KUBERNETES_EXEC_INFO $EXTRA $*" >> {asked}; cat {answer}'
    user = plugin(
        tmp_path,
        script,
        args=["get", "token"],
        env=[{"name": "EXTRA", "value": "x1"}],
        provideClusterInfo=True,
    )
    client = KubernetesClient.open(str(server.kubeconfig(user=user)))
    client.get("/version")
    client.get("/version")
    (line,) = asked.read_text().splitlines()
    info, _, words = line.rpartition("} ")
    assert words == "x1 get token"
    sent = json.loads(info + "}")
    assert (sent["kind"], sent["spec"]["interactive"]) == ("ExecCredential", False)
    assert sent["spec"]["cluster"]["server"] == f"https://127.0.0.1:{server.port}"

    answer.write_text(credential("token-2", lives_s=2))
    server.answer = lambda call: (
        status(401, "Unauthorized", "Unauthorized")
        if call.headers["authorization"] == "Bearer token-1"
        else Answer({})
    )
    client.get("/version")
    answer.write_text(credential("token-3"))
    time.sleep(1.5)
    client.get("/version")
    client.get("/version")
    shown = [call.headers["authorization"].split()[1] for call in server.calls]
    assert shown == ["token-1", "token-1", "token-1", "token-2", "token-3", "token-3"]
    assert len(asked.read_text().splitlines()) == 3
    server.answer = lambda call: status(401, "Unauthorized", "Unauthorized")
    with pytest.raises(Unauthorized):
        client.get("/version")
    assert len(asked.read_text().splitlines()) == 4


def test_many_threads_ask_a_plugin_once(tmp_path: Path, server: KubeServer) -> None:
    asked = tmp_path / "asked"
    user = plugin(tmp_path, f"echo x >> {asked}; sleep 0.3; echo '{credential('t')}'")
    client = KubernetesClient.open(str(server.kubeconfig(user=user)))
    threads = [threading.Thread(target=client.get, args=("/version",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.read_text() == "x\n"


def test_a_plugin_may_give_a_certificate(tmp_path: Path, server: KubeServer) -> None:
    pair = server.authority.issue("dana")
    given = credential(clientCertificateData=pair.certificate.read_text(), clientKeyData=pair.key.read_text())
    (tmp_path / "given").write_text(given)
    user = plugin(tmp_path, f"cat {tmp_path / 'given'}")
    assert KubernetesClient.open(str(server.kubeconfig(user=user))).get("/version") == {}


PLUGINS: list[tuple[str, dict[str, Any], type[KubernetesError], str]] = [
    ("echo 'aws: not logged in' >&2; exit 3", {}, CredentialsUnavailable, "aws: not logged in"),
    ("exit 3", {}, CredentialsUnavailable, "fails with exit code 3"),
    ("echo my-token-is-secret", {}, CredentialsUnavailable, "writes no ExecCredential"),
    ("echo '{}'", {}, CredentialsUnavailable, "writes no ExecCredential"),
    ("echo '[]'", {}, CredentialsUnavailable, "writes no ExecCredential"),
    (f"echo '{credential()}'", {}, CredentialsUnavailable, "neither a token nor a certificate"),
    (
        f"echo '{credential('t', expirationTimestamp='soon')}'",
        {},
        CredentialsUnavailable,
        "a time that is none",
    ),
    (
        f"echo '{credential('t')}'",
        {"apiVersion": "client.authentication.k8s.io/v1beta1"},
        CredentialsUnavailable,
        "asks for client.authentication.k8s.io/v1beta1",
    ),
    ("", {"command": "no-such-plugin", "installHint": "ask ops"}, CredentialsUnavailable, "ask ops"),
    ("", {"command": "./no-such-plugin"}, CredentialsUnavailable, "is not installed"),
    ("", {"apiVersion": "v9"}, BadKubeconfig, "no apiVersion that is known"),
    ("", {"interactiveMode": "Always"}, BadKubeconfig, "wants a person at a terminal"),
]


@pytest.mark.parametrize(("script", "words", "kind", "said"), PLUGINS)
def test_a_plugin_that_fails_is_told(
    tmp_path: Path, script: str, words: dict[str, Any], kind: type[KubernetesError], said: str
) -> None:
    path = config(tmp_path / "config", users=[{"name": "a", "user": plugin(tmp_path, script, **words)}])
    with pytest.raises(kind) as caught:
        log_in(str(path)).credentials()
    assert said in caught.value.text()
    assert "my-token-is-secret" not in caught.value.text()
    assert caught.value.where == str(path)


def test_a_plugin_beside_the_kubeconfig_is_found(tmp_path: Path, server: KubeServer) -> None:
    user = plugin(tmp_path, f"echo '{credential('beside')}'", command="./plugin")
    KubernetesClient.open(str(server.kubeconfig(user=user))).get("/version")
    assert server.calls[-1].headers["authorization"] == "Bearer beside"


@pytest.mark.parametrize(
    ("excluded", "host", "proxied"),
    [
        ("", "a.example", True),
        ("*", "a.example", False),
        ("example", "a.example", False),
        (".a.example", "a.example", True),
        ("a.example", "a.example", False),
        ("b.example, a.example:6443", "a.example", False),
        ("a.example:1", "a.example", True),
        ("ample", "a.example", True),
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("fd00::/8", "[fd00::1]", False),
        ("", "127.0.0.2", False),
        ("", "localhost", False),
    ],
)
def test_the_environments_proxy_leaves_out_what_it_shall(
    monkeypatch: pytest.MonkeyPatch, excluded: str, host: str, proxied: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", excluded)
    expected = "http://proxy.example:3128" if proxied else None
    assert environment_proxy(urlsplit(f"https://{host}:6443")) == expected


class Proxy:
    """A proxy that tunnels for who knows its password."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (data := client.recv(1)):
                return
            head += data
        self.requests.append(head.decode())
        wanted = base64.b64encode(b"dana:open up").decode()
        if f"Basic {wanted}" not in head.decode():
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            client.close()
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        server = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_a_server_without_encryption_is_spoken_to_as_the_kubeconfig_says(tmp_path: Path) -> None:
    with kube_server(tmp_path, encrypted=False) as server:
        server.stream = run_command
        server.answer = lambda call: Answer(pod())
        path = server.kubeconfig(server=f"http://127.0.0.1:{server.port}/behind")
        assert KubernetesClient.open(str(path)).get("/version") == pod()
        access = {"kind": "kubernetes", "kubeconfig": str(path), "namespace": "n", "pod": "p"}
        node = NodeState.model_validate({"index": 0, "name": "p", "access": access})
        connector = KubernetesConnector()
        assert connector.run(node, Command("cat", stdin=b"plain")).stdout == "plain"
        connector.close()
        assert {call.path.split("/")[1] for call in server.calls} == {"behind"}


def test_requests_and_streams_go_through_the_proxy_of_the_kubeconfig(
    server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    proxy = Proxy()
    server.stream = run_command
    server.answer = lambda call: Answer(pod())
    path = server.kubeconfig(proxy_url=f"http://dana:open%20up@127.0.0.1:{proxy.port}")
    assert KubernetesClient.open(str(path)).get("/version") == pod()
    access = {"kind": "kubernetes", "kubeconfig": str(path), "namespace": "n", "pod": "p"}
    node = NodeState.model_validate({"index": 0, "name": "p", "access": access})
    connector = KubernetesConnector()
    assert connector.run(node, Command("cat", stdin=b"through")).stdout == "through"
    connector.close()
    assert len(proxy.requests) == 3
    assert {text.split()[0] for text in proxy.requests} == {"CONNECT"}

    refused = server.kubeconfig("refused", proxy_url=f"http://dana:wrong-word@127.0.0.1:{proxy.port}")
    from orch.runner.kubernetes import transport

    monkeypatch.setattr(transport, "PATIENCE_S", 0.2)
    with pytest.raises(ClusterUnreachable, match="the proxy on the way") as caught:
        KubernetesClient.open(str(refused)).get("/version")
    assert "wrong-word" not in caught.value.text()
    assert "407" in caught.value.text()
    proxy.close()
