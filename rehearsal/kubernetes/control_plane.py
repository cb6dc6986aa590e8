"""A real Kubernetes control plane on this machine's loopback: etcd, API server, controllers, scheduler."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from orch.rehearsal.kubernetes.certificates import Authority, KeyPair, service_account_keys
from orch.rehearsal.kubernetes.programs import Programs
from orch.spec.errors import ExitCode, OrchError

READY_WITHIN_S = 180.0
ENDS_WITHIN_S = 2.0
SERVICES = "10.96.0.0/16"

GANGS = ("GenericWorkload=true", "GangScheduling=true")
"""Gates of the scheduler's own gangs, off by default in 1.36 (pkg/features/kube_features.go)."""

GANG_API = "scheduling.k8s.io/v1alpha2=true"


class ControlPlaneFailed(OrchError):
    """A program of the control plane ended, or did not become ready."""

    exit_code = ExitCode.PROVISION


@dataclass(frozen=True)
class Kubelets:
    """Where kubelets listen: all nodes' on one port of the loopback. `client`: who they let in."""

    port: int
    serving: KeyPair
    authority: Path
    client: KeyPair


class ControlPlane:
    """Its files are in `folder`: `admin.kubeconfig`, logs, data. What the folder has from before is removed.

    `gangs`: with the scheduler's own gangs (PodGroup).
    """

    def __init__(self, programs: Programs, folder: Path, *, gangs: bool = False) -> None:
        self._programs, self._folder, self._gangs = programs, folder, gangs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = folder / "admin.kubeconfig"

    def start(self) -> Kubelets:
        """Start all programs; returns when the API server answers. Raises ControlPlaneFailed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for each in ("", "logs", "data", "certificates"):
            (self._folder / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        files = self._folder / "certificates"
        authority = Authority(files)
        store, peers, port, kubelets = free_ports(4)
        serving = authority.issue(
            "kube-apiserver", hosts=("127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1")
        )
        accounts = service_account_keys(files)
        token = secrets.token_hex(16)
        self._write_private("tokens.csv", f'{token},admin,admin,"system:masters"\n')
        self._write_kubeconfig(authority.certificate, port, token)
        client = authority.issue("kube-apiserver-kubelet-client", organization="system:masters")
        try:
            self._start_etcd(store, peers)
            self._start_server(port, f"http://127.0.0.1:{store}", [serving, accounts, client], authority)
            self._wait(port, authority.certificate, token)
            self._start_controllers(accounts, authority.certificate)
        except BaseException:
            self.stop()
            raise
        return Kubelets(
            kubelets, authority.issue("kubelet", hosts=("127.0.0.1",)), authority.certificate, client
        )

    def stop(self) -> None:
        """End all programs, those that were started last first."""
        for program in reversed(self._running.values()):
            with suppress(ProcessLookupError):
                program.terminate()
            try:
                program.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                program.send_signal(signal.SIGKILL)
                program.wait()
        self._running.clear()

    def ended(self) -> str | None:
        """The program that ended, with the end of its log; None where the control plane is whole."""
        for name, program in self._running.items():
            if program.poll() is not None:
                log = (self._folder / "logs" / f"{name}.log").read_text("utf-8", "replace")
                return f"{name} ended with {program.returncode}:\n" + "\n".join(log.splitlines()[-5:])
        return None

    @property
    def processes(self) -> Mapping[str, int]:
        """Process numbers by program."""
        return {name: program.pid for name, program in self._running.items()}

    def _start_etcd(self, port: int, peers: int) -> None:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
        self._start(
            "etcd",
            "--name=orch",
            f"--data-dir={self._folder / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=orch={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def _start_server(self, port: int, store: str, pairs: Sequence[KeyPair], authority: Authority) -> None:
        serving, accounts, kubelets = pairs
        self._start(
            "kube-apiserver",
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-account-key-file={accounts.certificate}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            f"--kubelet-certificate-authority={authority.certificate}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            *self._gates(),
            *([f"--runtime-config={GANG_API}"] if self._gangs else []),
        )

    def _start_controllers(self, accounts: KeyPair, authority: Path) -> None:
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0")
        self._start(
            "kube-controller-manager",
            *common,
            f"--service-account-private-key-file={accounts.key}",
            f"--root-ca-file={authority}",
            "--use-service-account-credentials=false",
            "--node-monitor-grace-period=20s",
            *self._gates(),
        )
        self._start("kube-scheduler", *common, *self._gates())

    def _gates(self) -> tuple[str, ...]:
        return (f"--feature-gates={','.join(GANGS)}",) if self._gangs else ()

    def _start(self, name: str, *arguments: str) -> None:
        words = [self._programs[name], *arguments]
        setpriv = shutil.which("setpriv")
        if setpriv is not None:  # it ends with this process, however that ends
            words = [setpriv, "--pdeathsig", "KILL", *words]
        with (self._folder / "logs" / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder
            )

    def _wait(self, port: int, authority: Path, token: str) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        question = urllib.request.Request(
            f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {token}"}
        )
        ends = time.monotonic() + READY_WITHIN_S
        reason = ""
        while time.monotonic() < ends:
            if (ended := self.ended()) is not None:
                raise ControlPlaneFailed("the Kubernetes control plane does not start", detail=ended)
            try:
                with urllib.request.urlopen(question, timeout=5, context=context):
                    return
            except OSError as error:
                reason = str(error)
            time.sleep(0.2)
        raise ControlPlaneFailed(
            f"the Kubernetes API server is not ready after {READY_WITHIN_S:.0f} s",
            detail=reason,
            hint=f"its logs are in {self._folder / 'logs'}",
        )

    def _write_kubeconfig(self, authority: Path, port: int, token: str) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "orch",
                    "cluster": {
                        "server": f"https://127.0.0.1:{port}",
                        "certificate-authority": str(authority),
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "orch", "context": {"cluster": "orch", "user": "admin"}}],
            "current-context": "orch",
        }
        self._write_private(self.kubeconfig.name, yaml.safe_dump(document, sort_keys=False))

    def _write_private(self, name: str, text: str) -> None:
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of the loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)
    finally:
        for each in sockets:
            each.close()
