"""Nodes that are pods, on a real API server: commands, files, ports, shells, and how they fail."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.kubernetes.kubelab import Cluster
from kit.kubernetes.kubescreen import WAIT_S, Screen

from orch.rehearsal.kubernetes.certificates import Authority
from orch.runner.errors import CommandTimeout, HostUnreachable, LoginRefused, PodGone, RunnerError
from orch.runner.kubernetes.client import KubernetesClient, api_path
from orch.runner.kubernetes.connector import KubernetesConnector
from orch.runner.kubernetes.errors import (
    AdmissionDenied,
    Conflict,
    Forbidden,
    Invalid,
    ManagedByOthers,
    NotFound,
    QuotaExceeded,
    UnknownApi,
)
from orch.runner.node_api.commands import Command, StdinSource
from orch.spec.state import NodeState

pytestmark = pytest.mark.kubernetes

Doc = dict[str, Any]

# A server at a port of the pod's loopback, which says everything again.
SERVE = """\
perl -MIO::Socket::INET -e '
  $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8000, Listen => 50);
  $SIG{CHLD} = "IGNORE";
  while ($c = $s->accept) { if (!fork) { syswrite $c, $b while sysread $c, $b, 65536; exit } close $c }' &
trap 'exit 0' TERM; while :; do sleep 1; done"""


class Space:
    """A namespace of the cluster, and nodes that are its pods."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, cluster.namespace(name)

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.cluster.kubeconfig

    def node(self, name: str, command: str = SERVE, **access: Any) -> NodeState:
        """A pod that runs, as a node."""
        self.cluster.job(self.name, name, command, gpus=0)
        rows = self.cluster.until(
            lambda: [pod for pod in self.cluster.pods(self.name, name) if pod["status"]["phase"] == "Running"]
        )
        meta = rows[0]["metadata"]
        record = {
            "kind": "kubernetes",
            "kubeconfig": str(self.kubeconfig),
            "namespace": self.name,
            "pod": meta["name"],
            "uid": meta["uid"],
            "container": "main",
            **access,
        }
        return NodeState.model_validate({"index": 0, "name": meta["name"], "access": record})

    def login(self, folder: Path, name: str, rules: list[Doc]) -> Path:
        """The kubeconfig of a service account that may do this here, and nothing else."""
        api, rbac = self.cluster.api, f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.name}"
        accounts = f"/api/v1/namespaces/{self.name}/serviceaccounts"
        api.create(accounts, {"metadata": {"name": name}})
        api.create(f"{rbac}/roles", {"metadata": {"name": name}, "rules": rules})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.name}],
        }
        api.create(f"{rbac}/rolebindings", binding)
        token = api.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 3600}})
        document = yaml.safe_load(self.kubeconfig.read_text())
        for row in document["clusters"]:
            if "certificate-authority" in row["cluster"]:
                whole = self.kubeconfig.parent / row["cluster"]["certificate-authority"]
                row["cluster"]["certificate-authority"] = str(whole)
        document["users"] = [
            {"name": row["name"], "user": {"token": token["status"]["token"]}} for row in document["users"]
        ]
        path = folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path


def elsewhere(node: NodeState, **access: Any) -> NodeState:
    return node.model_copy(update={"access": node.access.model_copy(update=access)})


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Space]:
    space = Space(cluster, "connector")
    yield space
    cluster.empty(space.name)


@pytest.fixture(scope="module")
def node(space: Space) -> NodeState:
    return space.node("node")


@pytest.fixture(scope="module")
def connector() -> Iterator[KubernetesConnector]:
    connector = KubernetesConnector(connect_timeout_s=20.0, deadline_s=60.0)
    yield connector
    connector.close()


@pytest.fixture(scope="module")
def client(space: Space) -> Iterator[KubernetesClient]:
    client = KubernetesClient.open(str(space.kubeconfig))
    yield client
    client.close()


def test_output_input_and_exit_code_come_back(connector: KubernetesConnector, node: NodeState) -> None:
    done = connector.run(node, Command("cat; echo oops >&2; exit 3", stdin=b"given"))
    assert (done.stdout, done.stderr, done.exit_code) == ("given", "oops\n", 3)
    assert connector.run(node, Command("cat; echo end")).stdout == "end\n"
    assert connector.run(node, Command("cat; echo end", timeout_s=None)).stdout == "end\n"
    killed = connector.run(node, Command("echo before; kill -KILL $$"))
    assert (killed.stdout, killed.ending) == ("before\n", "exit code 137 (SIGKILL)")
    for _ in range(8):
        unread = StdinSource([b"x" * (1 << 20)] * 8)
        assert connector.run(node, Command("exit 5", stdin=unread)).exit_code == 5


def test_twenty_megabytes_go_up_and_come_down_as_they_are(
    connector: KubernetesConnector, node: NodeState, tmp_path: Path
) -> None:
    blocks = [os.urandom(1 << 20) for _ in range(20)]
    digest = hashlib.sha256(b"".join(blocks)).hexdigest()
    back = hashlib.sha256()
    done = connector.run(
        node, Command("tee /tmp/blob", stdin=StdinSource(blocks), timeout_s=200), on_data=back.update
    )
    assert (done.exit_code, back.hexdigest()) == (0, digest)
    assert connector.run(node, Command("sha256sum /tmp/blob")).stdout.split()[0] == digest
    connector.receive(node, "/tmp/blob", tmp_path / "blob")
    assert hashlib.sha256((tmp_path / "blob").read_bytes()).hexdigest() == digest
    connector.send(node, tmp_path / "blob", "/tmp/it's again")
    assert connector.run(node, Command('cmp /tmp/blob "/tmp/it\'s again"')).ok
    with pytest.raises(RunnerError, match="could not be copied") as caught:
        connector.receive(node, "/tmp/missing", tmp_path / "none")
    assert "No such file" in (caught.value.detail or "") or "nonexist" in (caught.value.detail or "")


def test_a_long_script_and_its_input_arrive(connector: KubernetesConnector, node: NodeState) -> None:
    text = "\n".join([*(f"a{i}='it'\"'\"'s {i}'" for i in range(2000)), 'printf %s "$a1999"', "cat"])
    assert connector.run(node, Command(text, stdin=b"\0rest\n")).stdout == "it's 1999\0rest\n"
    assert connector.run(node, Command(text)).stdout == "it's 1999"


def test_many_commands_run_at_once(connector: KubernetesConnector, node: NodeState) -> None:
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda i: connector.run(node, Command(f"sleep 1; echo {i}")).stdout, range(32)))
    assert said == [f"{i}\n" for i in range(32)]


def test_lines_arrive_while_a_command_runs_and_who_leaves_ends_it(
    connector: KubernetesConnector, node: NodeState, space: Space
) -> None:
    lines: list[bytes] = []
    stop = threading.Event()

    def take(text: bytes) -> None:
        lines.append(text)
        if text.endswith(b"2\n"):
            stop.set()

    text = "for i in 0 1 2; do echo $i; sleep 0.5; done; exec sleep 4711"
    done = connector.run(node, Command(text, timeout_s=None), on_lines=take, until=stop)
    assert (b"".join(lines), done.exit_code) == (b"0\n1\n2\n", -1)
    space.cluster.until(lambda: not connector.run(node, Command("pgrep -f '[s]leep 4711'")).ok)


def test_a_slow_command_is_given_up_after_its_time(connector: KubernetesConnector, node: NodeState) -> None:
    with pytest.raises(CommandTimeout):
        connector.run(node, Command("sleep 30", "wait a while", timeout_s=1.0))


def test_ports_of_a_pod_are_ports_here(connector: KubernetesConnector, node: NodeState) -> None:
    content = os.urandom(1 << 20)

    def echoed(port: int) -> bool:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.settimeout(WAIT_S)
            threading.Thread(target=client.sendall, args=(content,)).start()
            got = bytearray()
            while len(got) < len(content) and (data := client.recv(1 << 16)):
                got += data
            return bytes(got) == content

    with connector.forward(node, 8000) as port, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: echoed(port), range(4))) == [True] * 4
    with (
        connector.forward(node, 8001) as port,
        socket.create_connection(("127.0.0.1", port), 30) as refused,
    ):
        refused.settimeout(WAIT_S)
        assert refused.recv(1) == b""


def test_a_person_has_a_shell_there(connector: KubernetesConnector, node: NodeState, tmp_path: Path) -> None:
    screen = Screen(connector.terminal(node, tmp_path / "ssh", ()))
    screen.type("while [ \"$(stty size)\" != '33 91' ]; do sleep 0.1; done; echo at $(hostname) si''zed\n")
    screen.shows(f"at {node.name.rsplit('-', 1)[0]}")
    screen.shows("sized")
    screen.resize(20, 60)
    os.kill(screen.process.pid, signal.SIGWINCH)
    screen.type("while [ \"$(stty size)\" != '20 60' ]; do sleep 0.1; done; echo re''sized\n")
    screen.shows("resized")
    screen.type("exit 7\n")
    assert screen.code() == 7
    assert screen.cooked()
    screen.close()
    words = connector.command_line(node, tmp_path / "ssh", "cat; exit 3", terminal=False)
    done = subprocess.run(words, input=b"\0in\n", capture_output=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.returncode) == (b"\0in\n", 3)


def test_a_pod_that_is_deleted_is_gone_for_all_that_use_it(
    connector: KubernetesConnector, space: Space, client: KubernetesClient
) -> None:
    node = space.node("deleted")
    path = api_path("v1", "pods", space.name, node.name)
    deleting: list[object] = []

    def delete(_: bytes) -> None:
        deleting.append(client.delete(path, grace_s=0, propagation="Background"))

    with pytest.raises(PodGone) as caught:
        connector.run(node, Command("echo here; sleep 60", timeout_s=None), on_lines=delete)
    assert deleting
    assert f"pod {space.name}/{node.name}" in caught.value.summary
    space.cluster.until(lambda: client.find(path) is None)
    with pytest.raises(PodGone, match="is gone"):
        connector.run(node, Command("true"))
    other = space.node("other")
    with pytest.raises(PodGone, match="another one has its name"):
        connector.run(elsewhere(other, uid="00000000-0000-0000-0000-000000000000"), Command("true"))


def test_a_pod_that_was_evicted_or_ended_says_why(
    connector: KubernetesConnector, space: Space, client: KubernetesClient
) -> None:
    node, short = space.node("evicted"), space.node("short", "sleep 3; exit 9")
    space.cluster.cluster.ask(
        "evict", namespace=space.name, pod=node.name, message="the node was low on memory"
    )

    def phase(of: NodeState) -> str:
        found = client.find(api_path("v1", "pods", space.name, of.name)) or {}
        return str((found.get("status") or {}).get("phase"))

    space.cluster.until(lambda: phase(node) == "Failed" and phase(short) == "Failed")
    with pytest.raises(PodGone, match="Evicted") as caught:
        connector.run(node, Command("true"))
    assert (caught.value.reason, "low on memory" in (caught.value.detail or "")) == ("Evicted", True)
    with pytest.raises(PodGone) as caught:
        connector.run(short, Command("true"))
    assert "exit code 9" in (caught.value.detail or "")


def test_a_pod_that_has_not_started_may_come(
    connector: KubernetesConnector, space: Space, client: KubernetesClient
) -> None:
    gate = {"schedulingGates": [{"name": "orch.test/gate"}]}
    space.cluster.job(space.name, "gated", SERVE, gpus=0, **gate)
    (row,) = space.cluster.until(lambda: space.cluster.pods(space.name, "gated"))
    meta = row["metadata"]
    access = {
        "kind": "kubernetes",
        "kubeconfig": str(space.kubeconfig),
        "namespace": space.name,
        "pod": meta["name"],
        "uid": meta["uid"],
        "container": "main",
    }
    node = NodeState.model_validate({"index": 0, "name": meta["name"], "access": access})
    with pytest.raises(HostUnreachable, match="has not started") as caught:
        connector.run(node, Command("true"), deadline_s=1.0)
    assert not isinstance(caught.value, PodGone)
    path = api_path("v1", "pods", space.name, node.name)
    threading.Timer(1.0, lambda: client.patch(path, {"spec": {"schedulingGates": []}})).start()
    assert connector.run(node, Command("echo up"), deadline_s=120.0).stdout == "up\n"


def test_who_may_not_is_told_and_these_rights_are_enough(
    connector: KubernetesConnector, node: NodeState, space: Space, tmp_path: Path
) -> None:
    looks = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    some = space.login(tmp_path, "looker", [looks])
    with pytest.raises(LoginRefused) as caught:
        connector.run(elsewhere(node, kubeconfig=str(some)), Command("true"))
    assert f"system:serviceaccount:{space.name}:looker may not get pods/exec" in (caught.value.detail or "")
    none = space.login(tmp_path, "nobody", [])
    with pytest.raises(LoginRefused, match="cannot be reached") as caught:
        connector.run(elsewhere(node, kubeconfig=str(none)), Command("true"))
    assert "may not get pods" in (caught.value.detail or "")
    streams = {"apiGroups": [""], "resources": ["pods/exec", "pods/portforward"], "verbs": ["create", "get"]}
    half = space.login(tmp_path, "half", [looks, {**streams, "verbs": ["get"]}])
    with pytest.raises(LoginRefused) as caught:  # since Kubernetes 1.35, a WebSocket needs both
        connector.run(elsewhere(node, kubeconfig=str(half)), Command("true"))
    assert "may not create pods/exec" in (caught.value.detail or "")
    enough = elsewhere(node, kubeconfig=str(space.login(tmp_path, "worker", [looks, streams])))
    assert connector.run(enough, Command("echo may")).stdout == "may\n"
    with (
        connector.forward(enough, 8000) as port,
        socket.create_connection(("127.0.0.1", port), 30) as client,
    ):
        client.settimeout(WAIT_S)
        client.sendall(b"ping")
        assert client.recv(4) == b"ping"
    wrong = tmp_path / "wrong.kubeconfig"
    document = yaml.safe_load(none.read_text())
    document["users"][0]["user"]["token"] = "not-a-token"
    wrong.write_text(yaml.safe_dump(document))
    with pytest.raises(LoginRefused) as caught:
        connector.run(elsewhere(node, kubeconfig=str(wrong)), Command("true"))
    assert "does not accept your credentials" in (caught.value.detail or "")


def test_a_cluster_with_another_certificate_is_not_talked_to(
    connector: KubernetesConnector, node: NodeState, space: Space, tmp_path: Path
) -> None:
    document = yaml.safe_load(space.kubeconfig.read_text())
    other = base64.b64encode(Authority(tmp_path).certificate.read_bytes()).decode()
    document["clusters"][0]["cluster"] = {
        "server": document["clusters"][0]["cluster"]["server"],
        "certificate-authority-data": other,
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(HostUnreachable) as caught:
        connector.run(elsewhere(node, kubeconfig=str(path)), Command("true"), deadline_s=120)
    assert "is not trusted" in (caught.value.detail or "")


def config_map(name: str, **data: str) -> Doc:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_objects_are_applied_changed_watched_and_deleted(space: Space, client: KubernetesClient) -> None:
    rows = api_path("v1", "configmaps", space.name)
    path = f"{rows}/applied"
    until, seen = threading.Event(), []

    def watch() -> None:
        for kind, document in client.watch(rows, until, fieldSelector="metadata.name=applied"):
            seen.append((kind, (document.get("data") or {}).get("a")))
            if kind == "DELETED":
                until.set()

    thread = threading.Thread(target=watch)
    thread.start()
    space.cluster.until(lambda: seen)
    made = client.apply(path, config_map("applied", a="1"))
    assert (
        client.apply(path, config_map("applied", a="1"))["metadata"]["resourceVersion"]
        == (made["metadata"]["resourceVersion"])
    )
    client.patch(path, {"data": {"a": "2"}}, fieldManager="somebody")
    with pytest.raises(ManagedByOthers) as caught:
        client.apply(path, config_map("applied", a="3"))
    assert caught.value.managers == (("somebody", (".data.a",)),)
    with pytest.raises(Conflict, match="already"):
        client.create(rows, config_map("applied"))
    assert client.delete(path, uid="00000000-0000-0000-0000-000000000000") is None
    assert client.find(path) is not None
    assert client.delete(path, uid=made["metadata"]["uid"], propagation="Background") is not None
    thread.join(WAIT_S)
    assert seen == [("SYNC", None), ("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]
    assert client.find(path) is None
    assert client.delete(path) is None
    with pytest.raises(NotFound):
        client.get(path)


def test_each_refusal_of_a_real_server_is_known(
    space: Space, client: KubernetesClient, tmp_path: Path
) -> None:
    pods, rows = api_path("v1", "pods", space.name), api_path("v1", "configmaps", space.name)
    with pytest.raises(UnknownApi):
        client.items(api_path("no-such.example/v1", "things"))
    with pytest.raises(Invalid) as caught:
        client.create(
            pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": []}}
        )
    assert caught.value.fields[0] == ("spec.containers", "Required value")
    with pytest.raises(Invalid) as caught:
        client.create(rows, {**config_map("x"), "dta": {}})
    assert 'unknown field "dta"' in caught.value.text()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    client.create(
        api_path("v1", "resourcequotas", space.name), {**quota, "spec": {"hard": {"count/secrets": "0"}}}
    )

    def refused() -> str:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "s-"}}
        try:
            client.create(api_path("v1", "secrets", space.name), secret)
        except QuotaExceeded as error:
            return error.summary
        return ""

    assert "quota few leaves no room for secrets" in space.cluster.until(refused)
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    guarded = {"metadata": {"name": "guarded", "labels": strict}}
    client.create(api_path("v1", "namespaces"), {"apiVersion": "v1", "kind": "Namespace", **guarded})
    privileged = {"name": "c", "image": "x", "securityContext": {"privileged": True}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {"containers": [privileged]},
    }
    with pytest.raises(AdmissionDenied) as caught:
        client.create(api_path("v1", "pods", "guarded"), body)
    assert (caught.value.by, "privileged" in (caught.value.detail or "")) == ("PodSecurity", True)

    config = space.login(tmp_path, "reader", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    reader = KubernetesClient.open(str(config))
    assert reader.can("list", "pods", namespace=space.name)
    assert not reader.can("create", "pods", namespace=space.name, subresource="exec")
    assert any("list" in rule["verbs"] and "pods" in rule["resources"] for rule in reader.rules(space.name))
    reader.items(pods)
    with pytest.raises(Forbidden, match=f"{space.name}:reader may not create configmaps in namespace"):
        reader.create(rows, config_map("x"))
    with pytest.raises(Forbidden, match="may not list nodes"):
        reader.items(api_path("v1", "nodes"))
    reader.close()


def test_a_kubelet_that_is_lost_is_silence_and_not_the_end_of_a_pod(
    connector: KubernetesConnector, space: Space, client: KubernetesClient
) -> None:
    node = space.node("lost")
    where = client.get(api_path("v1", "pods", space.name, node.name))["spec"]["nodeName"]
    assert connector.run(node, Command("echo here")).ok
    space.cluster.cluster.ask("lose", node=where)
    try:
        with pytest.raises((HostUnreachable, CommandTimeout)) as caught:
            connector.run(node, Command("echo here", timeout_s=3.0), deadline_s=3.0, connect_timeout_s=3.0)
        assert not isinstance(caught.value, PodGone)
    finally:
        space.cluster.cluster.ask("find_again", node=where)
    assert connector.run(node, Command("echo back"), deadline_s=120.0).stdout == "back\n"
