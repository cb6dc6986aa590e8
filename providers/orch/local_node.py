"""`orch:local:Node`: a container that is a cluster node, with sshd and its own Docker daemon.

Inputs: `name` (container), `hostname`, `stack`, `network`, `ip`, `image`, `cpus` and `memory_mib` (null = the
machine's), `authorized_key`, `host_key_seed` (Ed25519 private seed, hex, secret), `status` ("running"), and
`init` where it has steps (their records, secret), `placeholders` where it has device files without devices.
Outputs: `ssh_address`, `ssh_port` (published on the loopback address, so that it also works where containers'
addresses are not routed). Its host key is put in before the first start: known_hosts is complete before the
first connect.
"""

from __future__ import annotations

import random
import socket
import time
from typing import Any, ClassVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from docker.errors import APIError, ImageNotFound, NotFound

from orch.images.client import connect
from orch.images.errors import DockerUnavailable
from orch.images.volume_folders import MOUNTED, remove_when_empty
from orch.providers.orch.containers import (
    DOCKER_ANSWERS,
    archive,
    docker_error,
    kept_out,
    make_placeholders,
    run_steps,
)
from orch.providers.orch.handler import OBSERVED, Inputs, ProviderError, State, StepFailed
from orch.providers.orch.local_network import STACK_LABEL

MIB = 1 << 20
LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 60.0
REMOVE_S = 600.0
"""How long Docker may take to remove a node with all the images on it: minutes on a disk that is busy."""
PORTS = range(10_000, 20_000)
PORT_TRIES = 5
CPU_PERIOD_US = 100_000
AUTHORIZED_KEYS = "etc/orch/authorized_keys"

CAPABILITIES = ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK", "SYS_NICE")
"""SYS_ADMIN and NET_ADMIN for the inner Docker daemon, the others for debuggers, RDMA-like pinning and
priorities."""


class LocalNodeHandler:
    computed: ClassVar[frozenset[str]] = frozenset({"ssh_address", "ssh_port"})
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, remove_s: float = REMOVE_S) -> None:
        self._remove_s = remove_s

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        failures = [
            (key, "must be set")
            for key in (
                "name",
                "hostname",
                "stack",
                "network",
                "ip",
                "image",
                "authorized_key",
                "host_key_seed",
            )
            if inputs.get(key) in (None, "")
        ]
        memory = inputs.get("memory_mib")
        if isinstance(memory, int | float) and memory < 64:
            failures.append(("memory_mib", f"{memory} MiB is too little for a node's SSH and Docker daemons"))
        return failures

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        # Docker changes a memory limit in place but cannot lift it.
        return key not in {
            "cpus",
            "memory_mib",
            "status",
            "authorized_key",
            "init",
            "placeholders",
        } or (key == "memory_mib" and new is None)

    def create(self, inputs: Inputs) -> tuple[str, State]:
        client = connect()
        name = inputs["name"]
        _remove_leftover(client, name, inputs["stack"])
        container, port = _started(client, inputs)
        _wait_ready(container, name, port)
        make_placeholders(container, inputs.get("placeholders") or ())
        if not inputs.get("init"):
            return name, _outputs(container)
        try:
            run_steps(name, inputs, new=True)
        except StepFailed:
            # Nothing records it, and the same steps would find another node the next time.
            container.remove(force=True, v=True)
            raise
        return name, _outputs(container)

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            container = connect().containers.get(resource_id)
        except NotFound:
            return None
        except DockerUnavailable as error:
            outputs = {key: state[key] for key in self.computed if key in state}
            return {**outputs, OBSERVED: {"status": f"unknown: {error.summary}"}}
        return _outputs(container, before=state, amiss=kept_out(container, state))

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        try:
            container = connect().containers.get(resource_id)
            container.reload()
            if _limits(container) != (inputs.get("cpus"), inputs.get("memory_mib")):
                _set_limits(container, inputs)
            if state.get("authorized_key") != inputs["authorized_key"]:
                container.put_archive(
                    "/", archive({AUTHORIZED_KEYS: inputs["authorized_key"].strip() + "\n"})
                )
            if container.status == "paused":
                container.unpause()
            elif container.status != "running":
                container.start()
            _wait_ready(container, resource_id, int(state["ssh_port"]))
            wanted = inputs.get("placeholders") or ()
            make_placeholders(
                container, wanted, without=set(state.get("placeholders") or ()).difference(wanted)
            )
            # Those that failed keep it out also when they are in no record: they were taken back.
            if inputs.get("init") or state.get("init") or kept_out(container, inputs):
                run_steps(resource_id, inputs, new=False)
        except NotFound:
            raise ProviderError(
                f"the node {resource_id} is gone",
                hint="run `orch up` again: it will be made anew",
                code="ORCH342",
            ) from None
        except APIError as error:
            raise docker_error(f"the node {resource_id} was not changed", error) from error
        return _outputs(container)

    def delete(self, resource_id: str, state: State) -> None:
        try:
            # v: the inner Docker's store is an anonymous volume, which would stay behind.
            client = connect(self._remove_s)
            client.containers.get(resource_id).remove(force=True, v=True)
            if state.get("image"):
                remove_when_empty(client, state["image"])
        except NotFound:
            return
        except APIError as error:
            if "is already in progress" in str(error):
                return
            raise docker_error(f"the node {resource_id} was not removed", error) from error
        except OSError as error:  # of the connection: most likely the time is over
            raise ProviderError(
                f"Docker has not told within {self._remove_s:.0f} s that the node {resource_id} is removed",
                detail=str(error),
                hint="it may still be at it: run the same command again",
                code="ORCH342",
            ) from error


def _remove_leftover(client: Any, name: str, stack: str) -> None:
    """A container that a killed creation left under this name. Nothing recorded it, so nothing runs on it."""
    try:
        container = client.containers.get(name)
    except NotFound:
        return
    if container.labels.get(STACK_LABEL) != stack:
        raise ProviderError(
            f"a container {name} is there that is not this stack's",
            hint=f"remove it (`docker rm -f {name}`) or rename the fleet",
            code="ORCH341",
        )
    container.remove(force=True, v=True)


def _started(client: Any, inputs: Inputs) -> tuple[Any, int]:
    """The container and its published SSH port; another port when somebody was quicker to take it."""
    tries = 0
    while True:
        tries += 1
        port = _free_port()
        container = _create_container(client, inputs, port)
        container.put_archive("/", _key_files(inputs))
        try:
            container.start()
        except APIError as error:
            container.remove(force=True, v=True)
            port_in_use = "port is already allocated" in str(error) or "address already in use" in str(error)
            if not port_in_use or tries == PORT_TRIES:
                raise docker_error(f"the node {inputs['name']} did not start", error) from error
        else:
            return container, port


def _create_container(client: Any, inputs: Inputs, port: int) -> Any:
    name, network = inputs["name"], inputs["network"]
    limits: dict[str, Any] = {}
    if inputs.get("cpus"):
        # Not nano_cpus: Docker's update call of the SDK can change a quota only.
        limits["cpu_period"], limits["cpu_quota"] = CPU_PERIOD_US, int(inputs["cpus"] * CPU_PERIOD_US)
    if inputs.get("memory_mib"):
        limits["mem_limit"] = int(inputs["memory_mib"]) * MIB
        limits["memswap_limit"] = limits["mem_limit"]
    endpoint = client.api.create_endpoint_config(aliases=[inputs["hostname"]], ipv4_address=inputs["ip"])
    try:
        return client.containers.create(
            inputs["image"],
            name=name,
            hostname=inputs["hostname"],
            labels={STACK_LABEL: inputs["stack"]},
            network=network,
            networking_config={network: endpoint},
            ports={"22/tcp": (LOOPBACK, port)},
            volumes=MOUNTED,
            cgroupns="private",
            cap_add=list(CAPABILITIES),
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            **limits,
        )
    except ImageNotFound as error:
        raise ProviderError(
            f"the node image {inputs['image']} is not on this machine",
            hint="`orch up` builds the one of this version; a fleet made by another version keeps its own: "
            "`orch down` and `orch up` renew it",
            code="ORCH343",
        ) from error
    except APIError as error:
        raise docker_error(f"the node {name} was not made", error) from error


def _key_files(inputs: Inputs) -> bytes:
    return archive(
        {
            "etc/ssh/ssh_host_ed25519_key": _openssh(inputs["host_key_seed"]),
            AUTHORIZED_KEYS: inputs["authorized_key"].strip() + "\n",
        }
    )


def _openssh(seed: str) -> str:
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ).decode()


def _set_limits(container: Any, inputs: Inputs) -> None:
    limits: dict[str, Any] = {
        "cpu_period": CPU_PERIOD_US,
        "cpu_quota": int(inputs["cpus"] * CPU_PERIOD_US) if inputs.get("cpus") else -1,
    }
    if inputs.get("memory_mib"):
        limits["mem_limit"] = limits["memswap_limit"] = int(inputs["memory_mib"]) * MIB
    container.update(**limits)
    container.reload()


def _limits(container: Any) -> tuple[float | None, int | None]:
    """CPUs and MiB in force, None where there is no limit; `docker update --cpus` leaves its figure in
    NanoCpus."""
    config = container.attrs["HostConfig"]
    quota = config.get("CpuQuota", 0)
    cpus = (
        quota / (config.get("CpuPeriod") or CPU_PERIOD_US) if quota > 0 else config.get("NanoCpus", 0) / 1e9
    )
    return (int(cpus) if cpus == int(cpus) else cpus) or None, config.get("Memory", 0) // MIB or None


def _outputs(container: Any, before: State | None = None, amiss: str = "") -> State:
    container.reload()
    bindings = (container.attrs["HostConfig"].get("PortBindings") or {}).get("22/tcp") or [{}]
    cpus, memory = _limits(container)
    networks = container.attrs["NetworkSettings"]["Networks"]
    observed = {
        "status": f"kept out: {amiss}" if amiss else container.status,
        "image": container.attrs["Config"]["Image"],
        "cpus": cpus,
        "memory_mib": memory,
    }
    if before is not None and before.get("network") not in networks:
        observed["network"] = None
    return {
        "ssh_address": LOOPBACK,
        "ssh_port": int(bindings[0].get("HostPort") or 0),
        OBSERVED: observed,
    }


def _free_port() -> int:
    """None that the kernel gives away by itself: a node that is stopped for a while has it still when it is
    started again."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise ProviderError(f"no port is free of {PORTS[0]} to {PORTS[-1]}", code="ORCH340")


def _wait_ready(container: Any, name: str, port: int) -> None:
    """Until sshd greets and the inner Docker answers. Measured: 1.1 s for two nodes on two cores."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    missing = "its SSH server"
    while time.monotonic() < deadline:
        container.reload()
        if container.status in {"exited", "dead"}:
            break
        if missing == "its SSH server" and _greets(port):
            missing = "its Docker daemon"
        if missing == "its Docker daemon" and container.exec_run(["sh", "-c", DOCKER_ANSWERS]).exit_code == 0:
            return
        time.sleep(0.1)
    log = container.logs(tail=5).decode(errors="replace").strip()
    raise ProviderError(
        f"the node {name} did not come up within {READY_TIMEOUT_S:.0f} s: {missing} does not answer",
        detail=f"its last words: {log or '(none)'} (status {container.status})",
        hint=f"look at `docker logs {name}`; `orch doctor` tells what this machine lacks",
        code="ORCH342",
    )


def _greets(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
