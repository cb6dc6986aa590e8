"""What the API server asks the rehearsed kubelet for, through the official client: logs, commands, ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.kubernetes.kubelab import Cluster

pytestmark = pytest.mark.kubernetes

kubernetes = pytest.importorskip("kubernetes")


@pytest.fixture(scope="module")
def core(cluster: Cluster) -> Iterator[Any]:
    api = kubernetes.config.new_client_from_config(str(cluster.cluster.kubeconfig))
    yield kubernetes.client.CoreV1Api(api)
    api.close()


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> tuple[str, str]:
    """A pod that counts, and that answers at a port of its loopback."""
    space = cluster.namespace("streams")
    server = 'IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8000, Listen => 5)'
    loop = "while ($c = $s->accept) { <$c>; print $c qq(hello\\n); close $c }"
    serve = f"perl -MIO::Socket::INET -e '$s = {server}; {loop}'"
    cluster.job(
        space, "count", f"{serve} & for i in $(seq 1 40); do echo line $i; sleep 0.1; done; sleep 600"
    )
    rows = cluster.until(
        lambda: [p for p in cluster.pods(space, "count") if p["status"]["phase"] == "Running"]
    )
    return space, rows[0]["metadata"]["name"]


def test_a_log_is_followed_from_where_one_likes(core: Any, pod: tuple[str, str]) -> None:
    space, name = pod
    stream = core.read_namespaced_pod_log(name, space, follow=True, timestamps=True, _preload_content=False)
    lines: list[bytes] = []
    rest = b""
    for part in stream.stream(1024):
        *whole, rest = (rest + part).split(b"\n")
        lines += whole
        if len(lines) >= 40:
            break
    stream.close()
    assert [line.split(b" ", 1)[1] for line in lines] == [b"line %d" % number for number in range(1, 41)]
    assert lines[0][:2] == b"20"
    tail = core.read_namespaced_pod_log(name, space, tail_lines=2, _preload_content=False)
    assert tail.data == b"line 39\nline 40\n"


def test_a_command_has_its_streams_and_its_code(core: Any, pod: tuple[str, str]) -> None:
    space, name = pod
    words = ["sh", "-c", "read line; echo got $line; echo bad >&2; exit 5"]
    channel = kubernetes.stream.stream(
        core.connect_get_namespaced_pod_exec,
        name,
        space,
        command=words,
        stdin=True,
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    channel.write_stdin("this\n")
    channel.run_forever(timeout=60)
    assert channel.read_stdout() == "got this\n"
    assert channel.read_stderr() == "bad\n"
    assert channel.returncode == 5


def test_a_port_of_the_pods_loopback_is_reached(core: Any, pod: tuple[str, str]) -> None:
    space, name = pod
    forward = kubernetes.stream.portforward(
        core.connect_get_namespaced_pod_portforward, name, space, ports="8000"
    )
    socket = forward.socket(8000)
    socket.settimeout(60)
    socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b""
    while part := socket.recv(1024):
        answer += part
    assert answer.endswith(b"hello\n")
