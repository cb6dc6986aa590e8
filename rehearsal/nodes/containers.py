"""Local nodes behind simulated instances: a container each, with the SSH keys that the user data carries.
Pods are containers without that (`pods.py`).

An instance whose user data holds a host key and an authorized key gets a container of the node image; its
address for this machine is in `cloud.endpoints()`. Devices of the type are placeholders: files of the right
names, nothing behind. Of what the user data prepares, a node has what keeps jobs from the instance metadata,
and what ends a machine that is idle.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from orch.rehearsal.account import SimulatedAccount, SimulationError
from orch.rehearsal.machines import Endpoint, SimulatedMachine
from orch.rehearsal.nodes import notices, pods
from orch.rehearsal.nodes.disks import VOLUMES, mount_file_systems
from orch.rehearsal.nodes.names import container_of, hostname_of, network_of
from orch.rehearsal.nodes.user_data import NodeKeys, file_of, host_seed, keys_of
from orch.rehearsal.scenario import NodeScenario
from orch.spec.errors import OrchError

FIRST_ADDRESS = 10

NETWORK = "node network"
"""Whether the account has a Docker network."""


_network_lock = threading.Lock()
_starting: set[str] = set()
"""Instances whose container is being created: until it is attached, the network looks unused."""


CLOSES_METADATA = "/var/lib/orch/metadata.sh"
"""A script in user data. The node runs it, as the preparation of a real machine does."""

ENDS_ITSELF = ("/var/lib/orch/idle.sh", "/var/lib/orch/ttl.sh")
"""Scripts in user data that power the machine off. A node runs them, as a real machine does."""

POWERED_OFF = "/var/lib/orch/powered-off"
SYSTEMCTL = "/usr/local/sbin/systemctl"
_POWER = f'#!/bin/sh\n[ "$1" = poweroff ] && : > {POWERED_OFF} && kill -TERM 1\n'

FAILED = "/var/lib/orch/boot/failed"


@contextmanager
def ended_on_error(end: Callable[[], object]) -> Iterator[None]:
    """Calls `end` (ends the instance) when the block fails to create its node, and raises the error on."""
    try:
        yield
    except OrchError:
        end()
        raise


def follow(cloud: SimulatedAccount, scenario: NodeScenario, end: Callable[[str], object]) -> None:
    """Stop and start the local nodes of instances that the account noted. `end`: what ends one that does not
    start."""
    born, dead = cloud.noted()
    for instance in dead:
        stop(cloud, instance)
    for instance in born:
        with ended_on_error(lambda one=instance: end(one)):
            start(cloud, scenario, instance)


def repair(cloud: SimulatedAccount) -> None:
    """Tell the account of machines that powered themselves off. After a kill: start missing containers of
    instances, and remove those of instances that are gone."""
    scenario = cloud.knobs.nodes
    tell_powered_off(cloud)
    machines = {each: cloud.machine(each) for each in cloud.instances()}
    live = {instance: machine for instance, machine in machines.items() if machine is not None}
    for instance, endpoint in cloud.endpoints().items():
        machine = live.get(instance)
        if machine is None or endpoint.container != container_of(cloud, machine):
            stop(cloud, instance)
    if scenario is not None:
        for instance in live.keys() - cloud.endpoints().keys():
            start(cloud, scenario, instance)


def tell_powered_off(cloud: SimulatedAccount) -> None:
    """Tell the account of machines that powered themselves off."""
    for instance, endpoint in cloud.endpoints().items():
        if _is_powered_off(endpoint.container):
            cloud.shut_down(instance)
            _remove_powered_off(cloud, endpoint)


@contextmanager
def _alone(cloud: SimulatedAccount, instance: str) -> Iterator[None]:
    """One process at a time starts the container of an instance: a command may repair what another one's
    provider is starting at this moment."""
    folder = cloud.path.parent / "starting"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = hashlib.sha256(f"{cloud.path.stem} {instance}".encode()).hexdigest()[:16]
    file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def start(cloud: SimulatedAccount, scenario: NodeScenario, instance: str) -> Endpoint | None:
    """Start the container of an instance unless it runs. None for an instance whose user data has no keys."""
    with _alone(cloud, instance):
        return cloud.endpoints().get(instance) or _start(cloud, scenario, instance)


def _start(cloud: SimulatedAccount, scenario: NodeScenario, instance: str) -> Endpoint | None:
    from orch.providers.orch.local_network import LocalNetworkHandler

    machine = cloud.machine(instance)
    if machine is None or (scenario.types is not None and machine.type not in scenario.types):
        return None
    keys = keys_of(machine.user_data, host_seed(cloud.seed, instance))
    if keys is None and machine.pod is None:
        return None
    network = network_of(cloud)
    with _network_lock:
        _starting.add(instance)
        _, network_outputs = LocalNetworkHandler().create({"name": network, "stack": network})
        with cloud.store.transaction():
            cloud.store.put_meta(NETWORK, True)
    try:
        address = _take_address(cloud, instance, network, network_outputs["subnet"])
        if keys is None:
            return _start_pod(cloud, scenario, machine, (network, address))
        return _start_container(cloud, scenario, machine, keys, (network, address))
    finally:
        with _network_lock:
            _starting.discard(instance)


def _take_address(cloud: SimulatedAccount, instance: str, network: str, subnet: str) -> str:
    """An address of the network for the container of an instance."""
    prefix = subnet.rsplit(".", 1)[0]
    with cloud.store.transaction():
        return next(
            f"{prefix}.{number}"
            for number in range(FIRST_ADDRESS, 255)
            if cloud.store.take(f"containers {network}", f"{prefix}.{number}", f"container {instance}")
        )


def _start_pod(
    cloud: SimulatedAccount, scenario: NodeScenario, machine: SimulatedMachine, at: tuple[str, str]
) -> Endpoint:
    """The container of a pod, `at` a network and an address in it."""
    assert machine.pod is not None
    container = container_of(cloud, machine)
    volumes = {f"{network_of(cloud)}-{name}": path for name, path in machine.pod.volumes.items()}
    with cloud.store.transaction():
        cloud.store.put_meta(VOLUMES, sorted({*(cloud.store.meta(VOLUMES) or ()), *volumes}))
    reached = pods.create(
        container, hostname_of(machine.hostname), at, machine.pod, image=scenario.image, volumes=volumes
    )
    endpoint = Endpoint(
        instance=machine.instance,
        container=container,
        address=reached.address,
        port=reached.port,
        user="root",
        host_key=reached.host_key,
        internal_ip=at[1],
    )
    cloud.record(endpoint)
    return endpoint


def _start_container(
    cloud: SimulatedAccount,
    scenario: NodeScenario,
    machine: SimulatedMachine,
    keys: NodeKeys,
    at: tuple[str, str],
) -> Endpoint:
    from orch.images.build import resolve
    from orch.providers.orch.local_node import LocalNodeHandler

    instance, container = machine.instance, container_of(cloud, machine)
    network, address = at
    _, outputs = LocalNodeHandler().create(
        {
            "name": container,
            "hostname": hostname_of(machine.hostname),
            "stack": network,
            "network": network,
            "ip": address,
            "image": scenario.image or resolve("orch/node"),
            "cpus": None,
            "memory_mib": None,
            "authorized_key": keys.authorized,
            "host_key_seed": keys.host_seed,
        }
    )
    placeholders = machine.placeholders if scenario.placeholders else ()
    _make_files(container, placeholders)
    mount_file_systems(cloud, container, machine, scenario.image or resolve("orch/node"))
    script = file_of(machine.user_data, CLOSES_METADATA)
    if script is not None:
        _close_metadata(container, script)
    for path in ENDS_ITSELF:
        script = file_of(machine.user_data, path)
        if script is not None:
            _run_ending_script(container, path, script)
    script = file_of(machine.user_data, notices.READS_NOTICES)
    if script is not None:
        notices.watch(container, script)
    endpoint = Endpoint(
        instance=instance,
        container=container,
        address=str(outputs["ssh_address"]),
        port=int(outputs["ssh_port"]),
        user="root",
        host_key=keys.host_public,
        internal_ip=address,
        placeholders=placeholders,
    )
    cloud.record(endpoint)
    return endpoint


def _make_files(container: str, names: tuple[str, ...]) -> None:
    """Create placeholder devices: copies of /dev/null, which a job can be given."""
    from orch.images.client import connect
    from orch.providers.orch.containers import make_placeholders
    from orch.providers.orch.handler import ProviderError

    try:
        make_placeholders(connect().containers.get(container), names)
    except ProviderError as error:
        hint = "turn the knob `nodes.placeholders` off"
        raise SimulationError(error.summary, detail=error.detail, hint=hint) from error


def _close_metadata(container: str, script: bytes) -> None:
    """Run the script that keeps jobs from the instance metadata. If it fails, the node takes no jobs, like
    a real one."""
    from orch.images.client import connect
    from orch.providers.orch.containers import archive

    node: Any = connect().containers.get(container)
    node.put_archive("/", archive({CLOSES_METADATA.lstrip("/"): script.decode()}))
    result: Any = node.exec_run(["bash", CLOSES_METADATA, "prove"])
    if result.exit_code:
        reason = result.output.decode(errors="replace").strip().rpartition("\n")[2]
        node.put_archive("/", archive({FAILED.lstrip("/"): f"{reason}\n"}))


def _run_ending_script(container: str, path: str, script: bytes) -> None:
    """Run what powers a machine off one day, beside a `systemctl` that ends the container."""
    from orch.images.client import connect
    from orch.providers.orch.containers import archive

    node: Any = connect().containers.get(container)
    node.put_archive("/", archive({path.lstrip("/"): script.decode(), SYSTEMCTL.lstrip("/"): _POWER}))
    node.exec_run(["sh", "-c", f"chmod 755 {SYSTEMCTL}; exec setsid bash {path}"], detach=True)


def _is_powered_off(container: str) -> bool:
    """Whether the machine of a container ended it. One that somebody killed did not."""
    from docker.errors import NotFound

    from orch.images.client import connect

    try:
        node: Any = connect().containers.get(container)
        if node.status != "exited":
            return False
        node.get_archive(POWERED_OFF)
    except NotFound:
        return False
    return True


def _remove_powered_off(cloud: SimulatedAccount, endpoint: Endpoint) -> None:
    """Remove the container of a machine that is off, and the network with the last one: by Docker alone, for
    whoever opens a rehearsal may ask a cloud's libraries, beside which our provider cannot be imported."""
    from docker.errors import APIError, NotFound

    from orch.images.client import connect

    client: Any = connect()
    try:
        client.containers.get(endpoint.container).remove(force=True, v=True)
    except NotFound:
        pass
    except APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:  # another process removes it
            raise
    cloud.forget(endpoint.instance)
    if not cloud.endpoints():
        with suppress(NotFound):
            client.networks.get(network_of(cloud)).remove()
        with cloud.store.transaction():
            cloud.store.put_meta(NETWORK, False)


def stop(cloud: SimulatedAccount, instance: str) -> None:
    """Remove the container of an instance, and the network with the last of them."""
    from orch.images.build import resolve
    from orch.images.client import connect
    from orch.providers.orch.local_network import STACK_LABEL, LocalNetworkHandler
    from orch.providers.orch.local_node import LocalNodeHandler

    endpoint = cloud.endpoints().get(instance)
    if endpoint is not None:
        LocalNodeHandler().delete(endpoint.container, {"image": resolve("orch/node")})
        cloud.forget(instance)
    network = network_of(cloud)
    with _network_lock:
        with cloud.store.transaction():
            has_network = cloud.store.meta(NETWORK)
        if not has_network:
            return
        containers = connect().api.containers(all=True, filters={"label": f"{STACK_LABEL}={network}"})
        if not containers and not _starting:
            LocalNetworkHandler().delete(network, {})
            with cloud.store.transaction():
                cloud.store.put_meta(NETWORK, False)
