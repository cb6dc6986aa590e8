"""Local nodes behind simulated instances: a container each, with the SSH keys that the user data carries.
Pods are containers without that (`pods.py`).

An instance whose user data holds a host key and an authorized key gets a container of the node image; its
address for this machine is in `cloud.endpoints()`. Devices of the type are placeholders: files of the right
names, nothing behind. Of what the user data prepares, a node has what keeps jobs from the instance metadata,
and what ends a machine that is idle.
"""

from __future__ import annotations

import email
import fcntl
import gzip
import hashlib
import os
import re
import threading
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import yaml

from orch.rehearsal import notices, pods
from orch.rehearsal.account import Endpoint, SimulatedAccount, SimulatedMachine, SimulationError
from orch.rehearsal.scenario import NodeScenario
from orch.rehearsal.store import Doc
from orch.spec.errors import OrchError

FIRST_ADDRESS = 10

NETWORK = "node network"
"""Whether the account has a Docker network."""

DISKS = "disks"
"""Folders that stand for disks of the account."""

VOLUMES = "volumes of pods"
"""Volumes of Docker that stand for volumes of the account, which pods have mounted."""

_network_lock = threading.Lock()
_starting: set[str] = set()
"""Instances whose container is being created: until it is attached, the network looks unused."""


FILE_SYSTEMS = "/var/lib/orch/file-systems"
"""A file in user data with a line `NAME SOURCE PATH` for each file system that the machine mounts."""

CLOSES_METADATA = "/var/lib/orch/metadata.sh"
"""A script in user data. The node runs it, as the preparation of a real machine does."""

ENDS_ITSELF = ("/var/lib/orch/idle.sh", "/var/lib/orch/ttl.sh")
"""Scripts in user data that power the machine off. A node runs them, as a real machine does."""

POWERED_OFF = "/var/lib/orch/powered-off"
SYSTEMCTL = "/usr/local/sbin/systemctl"
_POWER = f'#!/bin/sh\n[ "$1" = poweroff ] && : > {POWERED_OFF} && kill -TERM 1\n'

FAILED = "/var/lib/orch/boot/failed"

_ATTRIBUTE = re.compile(r"\bPUT\b[^\n]*/guest-attributes/([\w-]+/[\w-]+)")


@dataclass(frozen=True)
class NodeKeys:
    """The SSH keys in user data. `host_seed`: the Ed25519 private seed, hex."""

    host_seed: str
    host_public: str
    authorized: str


def keys_of(user_data: bytes, own_seed: str | None = None) -> NodeKeys | None:
    """The keys in cloud-init user data, or None where it carries no host key or nobody who may log in.

    `own_seed`: the Ed25519 private seed, hex, of the key that the machine makes where user data asks it to.
    """
    candidates = (_keys(config, own_seed) for config in _configs(user_data))
    return next((keys for keys in candidates if keys is not None), None)


def host_seed(account: str, instance: str) -> str:
    """The private seed, hex, of the key that an instance makes at its first boot. `account`: its seed."""
    return hashlib.sha256(f"{account} host key {instance}".encode()).hexdigest()


def public_key(seed: str) -> str:
    """The public half of such a key, as in known_hosts."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)).public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return public.public_bytes(*form).decode()


@lru_cache(maxsize=16)
def host_key_attributes(user_data: bytes) -> frozenset[str]:
    """The guest attributes (GCP, `NAMESPACE/KEY`) to which scripts of the user data write the machine's host
    key."""
    return frozenset(
        path
        for config in _configs(user_data)
        for file in config.get("write_files") or ()
        if isinstance(file, dict)
        for path in _ATTRIBUTE.findall(_content(file).decode(errors="replace"))
    )


@lru_cache(maxsize=16)
def shows_host_key(user_data: bytes) -> bool:
    """Whether cloud-init makes an Ed25519 host key and prints it on the console.

    It does unless told not to. Source: cloud-init's modules "SSH" and "Keys to Console".
    """
    return any(
        "ed25519" in (config.get("ssh_genkeytypes") or ())
        and not (config.get("ssh_keys") or {}).get("ed25519_private")
        and (config.get("ssh") or {}).get("emit_keys_to_console", True)
        for config in _configs(user_data)
    )


def file_of(user_data: bytes, path: str) -> bytes | None:
    """The content that cloud-init user data writes to a path, or None."""
    for config in _configs(user_data):
        for file in config.get("write_files") or ():
            if isinstance(file, dict) and file.get("path") == path:
                return _content(file)
    return None


def _content(file: Doc) -> bytes:
    """A file's content as cloud-init decodes it."""
    text, encoding = str(file.get("content") or ""), str(file.get("encoding") or "")
    decoders = {"b64": ("b64",), "base64": ("b64",), "gz+b64": ("b64", "gz"), "gzip+base64": ("b64", "gz")}
    data = text.encode()
    for step in decoders.get(encoding, ()):
        data = b64decode(data) if step == "b64" else gzip.decompress(data)
    return data


def _configs(user_data: bytes) -> Iterator[Doc]:
    for part in _parts(user_data):
        if not part.lstrip().startswith("#cloud-config"):
            continue
        try:
            config: Any = yaml.safe_load(part)
        except yaml.YAMLError:
            continue
        if isinstance(config, dict):
            yield config


def _parts(data: bytes) -> list[str]:
    """The parts of user data as cloud-init reads it: gzip and MIME multipart are unpacked."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, zlib.error, EOFError):
            return []
    text = data.decode(errors="replace")
    if text.lstrip().lower().startswith(("content-type:", "mime-version:")):
        message = email.message_from_string(text)
        parts = []
        for part in message.walk():
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes) and not part.is_multipart():
                parts += _parts(payload)
        return parts
    return [text]


def _keys(config: Doc, own_seed: str | None) -> NodeKeys | None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    authorized = list(config.get("ssh_authorized_keys") or ())
    for user in config.get("users") or ():
        if isinstance(user, dict):
            authorized += user.get("ssh_authorized_keys") or ()
    private = (config.get("ssh_keys") or {}).get("ed25519_private")
    if not authorized or not (private or (own_seed and "ed25519" in (config.get("ssh_genkeytypes") or ()))):
        return None
    try:
        if private:
            key = serialization.load_ssh_private_key(private.strip().encode() + b"\n", password=None)
        else:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(own_seed or ""))
    except ValueError:
        return None
    if not isinstance(key, Ed25519PrivateKey):
        return None
    raw = serialization.Encoding.Raw
    seed = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NodeKeys(seed.hex(), public.decode(), "\n".join(authorized))


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
        if machine is None or endpoint.container != _container(cloud, machine):
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


def _container(cloud: SimulatedAccount, machine: SimulatedMachine) -> str:
    return f"{_network(cloud)}-{machine.slug}"


def _network(cloud: SimulatedAccount) -> str:
    return f"orch-sim-{scope(cloud)}"


def scope(cloud: SimulatedAccount) -> str:
    """The part of container names that identifies this account."""
    return hashlib.sha256(str(cloud.path.resolve()).encode()).hexdigest()[:6]


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
    network = _network(cloud)
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
    container = _container(cloud, machine)
    volumes = {f"{_network(cloud)}-{name}": path for name, path in machine.pod.volumes.items()}
    with cloud.store.transaction():
        cloud.store.put_meta(VOLUMES, sorted({*(cloud.store.meta(VOLUMES) or ()), *volumes}))
    reached = pods.create(
        container, _hostname(machine.hostname), at, machine.pod, image=scenario.image, volumes=volumes
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

    instance, container = machine.instance, _container(cloud, machine)
    network, address = at
    _, outputs = LocalNodeHandler().create(
        {
            "name": container,
            "hostname": _hostname(machine.hostname),
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
    _mount_file_systems(cloud, container, machine, scenario.image or resolve("orch/node"))
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


def _hostname(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")[:63] or "node"


def _make_files(container: str, names: tuple[str, ...]) -> None:
    """Create placeholder devices: copies of /dev/null, which a job can be given."""
    from orch.images.client import connect
    from orch.providers.orch.handler import ProviderError
    from orch.providers.orch.local_node import make_placeholders

    try:
        make_placeholders(connect().containers.get(container), names)
    except ProviderError as error:
        hint = "turn the knob `nodes.placeholders` off"
        raise SimulationError(error.summary, detail=error.detail, hint=hint) from error


@dataclass(frozen=True)
class Disk:
    """A disk of the account, and the path under which an instance has it."""

    name: str
    path: str


def show_disk(
    cloud: SimulatedAccount, scenario: NodeScenario, instance: str, disk: Disk, *, there: bool
) -> None:
    """Show a disk to the node of an instance, or take it away: a folder of this machine stands for it."""
    from orch.images import volume_folders
    from orch.images.build import resolve
    from orch.images.client import connect

    endpoint = cloud.endpoints().get(instance)
    if endpoint is None:
        return
    folder = f"{_network(cloud)}-{disk.name}"
    if there:
        volume_folders.make(connect(), scenario.image or resolve("orch/node"), folder)
        with cloud.store.transaction():
            cloud.store.put_meta(DISKS, sorted({*(cloud.store.meta(DISKS) or ()), folder}))
        script = (
            f"mkdir -p {disk.path.rpartition('/')[0]}; ln -sfn {volume_folders.MOUNT}/{folder} {disk.path}"
        )
    else:
        script = f"rm -f {disk.path}"
    result: Any = connect().containers.get(endpoint.container).exec_run(["sh", "-ec", script])
    if result.exit_code:
        raise SimulationError(
            f"the node {endpoint.container} does not show its disk",
            detail=result.output.decode(errors="replace").strip(),
        )


def _mount_file_systems(
    cloud: SimulatedAccount, container: str, machine: SimulatedMachine, image: str
) -> None:
    """Show a node the file systems that its user data names, or its cloud mounts: a folder of this machine
    stands for each, by the address that it is mounted from, so that all nodes have the same."""
    from orch.images import volume_folders
    from orch.images.client import connect

    lines = (file_of(machine.user_data, FILE_SYSTEMS) or b"").decode().splitlines()
    named = [(source, path) for _, source, path in (line.split(" ", 2) for line in lines)]
    for source, path in (*named, *machine.file_systems):
        folder = f"{_network(cloud)}-{re.split('[:@]', source)[0]}"
        volume_folders.make(connect(), image, folder)
        with cloud.store.transaction():
            cloud.store.put_meta(DISKS, sorted({*(cloud.store.meta(DISKS) or ()), folder}))
        words = ["sh", "-ec", 'mkdir -p "${2%/*}/"; ln -sfnT "$1" "$2"', "sh"]
        target = f"{volume_folders.MOUNT}/{folder}"
        result: Any = connect().containers.get(container).exec_run([*words, target, path])
        if result.exit_code:
            raise SimulationError(
                f"the node {container} does not show the file system at {path}",
                detail=result.output.decode(errors="replace").strip(),
            )


def remove_disks(cloud: SimulatedAccount, *names: str) -> None:
    """Remove the folders that stand for these disks, all of the account without any."""
    from orch.images import volume_folders
    from orch.images.build import resolve
    from orch.images.client import connect

    with cloud.store.transaction():
        folders: set[str] = set(cloud.store.meta(DISKS) or ())
    gone = {f"{_network(cloud)}-{name}" for name in names} & folders if names else folders
    for folder in sorted(gone):
        volume_folders.remove(connect(), resolve("orch/node"), folder)
    with cloud.store.transaction():
        cloud.store.put_meta(DISKS, sorted(folders - gone))


def remove_volumes(cloud: SimulatedAccount, *, but: Iterable[str] = ()) -> None:
    """Remove what stands for volumes of the account, `but` for these."""
    kept = {f"{_network(cloud)}-{name}" for name in but}
    with cloud.store.transaction():
        known: set[str] = set(cloud.store.meta(VOLUMES) or ())
    pods.remove_volumes(sorted(known - kept))
    with cloud.store.transaction():
        cloud.store.put_meta(VOLUMES, sorted(known & kept))


def _close_metadata(container: str, script: bytes) -> None:
    """Run the script that keeps jobs from the instance metadata. If it fails, the node takes no jobs, like
    a real one."""
    from orch.images.client import connect
    from orch.providers.orch.local_node import archive

    node: Any = connect().containers.get(container)
    node.put_archive("/", archive({CLOSES_METADATA.lstrip("/"): script.decode()}))
    result: Any = node.exec_run(["bash", CLOSES_METADATA, "prove"])
    if result.exit_code:
        reason = result.output.decode(errors="replace").strip().rpartition("\n")[2]
        node.put_archive("/", archive({FAILED.lstrip("/"): f"{reason}\n"}))


def _run_ending_script(container: str, path: str, script: bytes) -> None:
    """Run what powers a machine off one day, beside a `systemctl` that ends the container."""
    from orch.images.client import connect
    from orch.providers.orch.local_node import archive

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
            client.networks.get(_network(cloud)).remove()
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
    network = _network(cloud)
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
