"""Local nodes behind simulated instances: a container each, with the SSH keys that the user data carries.

An instance whose user data holds a host key and an authorized key gets a container of the node image; its
address for this machine is in `cloud.endpoints()`. Devices of the type are placeholders: files of the right
names, nothing behind. Of what the user data prepares, a node has what keeps jobs from the instance metadata.
"""

from __future__ import annotations

import email
import gzip
import hashlib
import re
import threading
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from orch.rehearsal.account import Endpoint, SimulatedAccount, SimulatedMachine, SimulationError
from orch.rehearsal.scenario import NodeScenario
from orch.rehearsal.store import Doc
from orch.spec.errors import OrchError

FIRST_ADDRESS = 10

NETWORK = "node network"
"""Whether the account has a Docker network."""

_network_lock = threading.Lock()
_starting: set[str] = set()
"""Instances whose container is being made: until it hangs on it, the network looks unused."""


CLOSES_METADATA = "/var/lib/orch/metadata.sh"
"""A file of user data: it is run, and proves itself, as when a real machine is prepared."""

FAILED = "/var/lib/orch/boot/failed"

_ATTRIBUTE = re.compile(r"\bPUT\b[^\n]*/guest-attributes/([\w-]+/[\w-]+)")


@dataclass(frozen=True)
class NodeKeys:
    """What user data says about SSH. `host_seed`: the Ed25519 private seed, hex."""

    host_seed: str
    host_public: str
    authorized: str


def keys_of(user_data: bytes, made: str | None = None) -> NodeKeys | None:
    """The keys in cloud-init user data, or None where it carries no host key or nobody who may log in.

    `made`: the Ed25519 private seed, hex, of the key that a machine makes which is told to make its own.
    """
    return next((found for config in _configs(user_data) if (found := _keys(config, made)) is not None), None)


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
def shows_at(user_data: bytes) -> frozenset[str]:
    """Where in GCP's guest attributes a machine shows the host key that it makes: each `NAMESPACE/KEY` that a
    script of its user data writes."""
    return frozenset(
        path
        for config in _configs(user_data)
        for file in config.get("write_files") or ()
        if isinstance(file, dict)
        for path in _ATTRIBUTE.findall(_content(file).decode(errors="replace"))
    )


@lru_cache(maxsize=16)
def shows_key(user_data: bytes) -> bool:
    """Whether cloud-init makes an Ed25519 host key and shows it on the console.

    It does unless told not to. Source: cloud-init's modules "SSH" and "Keys to Console".
    """
    return any(
        "ed25519" in (config.get("ssh_genkeytypes") or ())
        and not (config.get("ssh_keys") or {}).get("ed25519_private")
        and (config.get("ssh") or {}).get("emit_keys_to_console", True)
        for config in _configs(user_data)
    )


def file_of(user_data: bytes, path: str) -> bytes | None:
    """What cloud-init user data writes to a path."""
    for config in _configs(user_data):
        for file in config.get("write_files") or ():
            if isinstance(file, dict) and file.get("path") == path:
                return _content(file)
    return None


def _content(file: Doc) -> bytes:
    """A file's content as cloud-init decodes it."""
    text, encoding = str(file.get("content") or ""), str(file.get("encoding") or "")
    known = {"b64": ("b64",), "base64": ("b64",), "gz+b64": ("b64", "gz"), "gzip+base64": ("b64", "gz")}
    data = text.encode()
    for step in known.get(encoding, ()):
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
    """User data as cloud-init reads it: perhaps compressed, perhaps of several MIME parts."""
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, zlib.error, EOFError):
            return []
    text = data.decode(errors="replace")
    if text.lstrip().lower().startswith(("content-type:", "mime-version:")):
        message = email.message_from_string(text)
        found = []
        for part in message.walk():
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes) and not part.is_multipart():
                found += _parts(payload)
        return found
    return [text]


def _keys(config: Doc, made: str | None) -> NodeKeys | None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    authorized = list(config.get("ssh_authorized_keys") or ())
    for user in config.get("users") or ():
        if isinstance(user, dict):
            authorized += user.get("ssh_authorized_keys") or ()
    private = (config.get("ssh_keys") or {}).get("ed25519_private")
    if not authorized or not (private or (made and "ed25519" in (config.get("ssh_genkeytypes") or ()))):
        return None
    try:
        if private:
            key = serialization.load_ssh_private_key(private.strip().encode() + b"\n", password=None)
        else:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(made or ""))
    except ValueError:
        return None
    if not isinstance(key, Ed25519PrivateKey):
        return None
    raw = serialization.Encoding.Raw
    seed = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return NodeKeys(seed.hex(), public.decode(), "\n".join(authorized))


@contextmanager
def ending(end: Callable[[], object]) -> Iterator[None]:
    """A node that cannot be made ends its instance, and is told."""
    try:
        yield
    except OrchError:
        end()
        raise


def repair(cloud: SimulatedAccount) -> None:
    """Containers for instances that lost theirs, and none for those that are gone: after a kill."""
    wanted = cloud.knobs.nodes
    live = {each: cloud.machine(each) for each in cloud.instances()}
    for instance, endpoint in cloud.endpoints().items():
        machine = live.get(instance)
        if machine is None or endpoint.container != _container(cloud, machine):
            stop(cloud, instance)
    if wanted is not None:
        for instance in live.keys() - cloud.endpoints().keys():
            start(cloud, wanted, instance)


def _container(cloud: SimulatedAccount, machine: SimulatedMachine) -> str:
    return f"{_network(cloud)}-{machine.slug}"


def _network(cloud: SimulatedAccount) -> str:
    return f"orch-sim-{scope(cloud)}"


def scope(cloud: SimulatedAccount) -> str:
    """What marks this account's containers among all of the machine."""
    return hashlib.sha256(str(cloud.path.resolve()).encode()).hexdigest()[:6]


def start(cloud: SimulatedAccount, wanted: NodeScenario, instance: str) -> Endpoint | None:
    """The container of an instance, made once. None for an instance whose user data carries no keys."""
    from orch.providers.orch.local_network import LocalNetworkHandler

    machine = cloud.machine(instance)
    if machine is None or (wanted.types is not None and machine.type not in wanted.types):
        return None
    keys = keys_of(machine.user_data, host_seed(cloud.seed, instance))
    if keys is None:
        return None
    network = _network(cloud)
    with _network_lock:
        _starting.add(instance)
        _, made = LocalNetworkHandler().create({"name": network, "stack": network})
        with cloud.store.transaction():
            cloud.store.put_meta(NETWORK, True)
    try:
        return _started(cloud, wanted, machine, keys, (network, made["subnet"]))
    finally:
        with _network_lock:
            _starting.discard(instance)


def _started(
    cloud: SimulatedAccount,
    wanted: NodeScenario,
    machine: SimulatedMachine,
    keys: NodeKeys,
    where: tuple[str, str],
) -> Endpoint:
    from orch.images.build import resolve
    from orch.providers.orch.local_node import LocalNodeHandler

    instance, (network, subnet) = machine.instance, where
    prefix = subnet.rsplit(".", 1)[0]
    with cloud.store.transaction():
        address = next(
            f"{prefix}.{number}"
            for number in range(FIRST_ADDRESS, 255)
            if cloud.store.take(f"containers {network}", f"{prefix}.{number}", f"container {instance}")
        )
    container = _container(cloud, machine)
    _, outputs = LocalNodeHandler().create(
        {
            "name": container,
            "hostname": _hostname(machine.hostname),
            "stack": network,
            "network": network,
            "ip": address,
            "image": wanted.image or resolve("orch/node"),
            "cpus": None,
            "memory_mib": None,
            "authorized_key": keys.authorized,
            "host_key_seed": keys.host_seed,
        }
    )
    placeholders = machine.placeholders if wanted.placeholders else ()
    _make_files(container, placeholders)
    closes = file_of(machine.user_data, CLOSES_METADATA)
    if closes is not None:
        _close_metadata(container, closes)
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
    """Each one is another /dev/null: it can be passed on to a job, and answers nothing."""
    from orch.images.client import connect

    if not names:
        return
    script = "mkdir -p /dev/infiniband; " + "; ".join(
        f"[ -e {one} ] || mknod -m 666 {one} c 1 3" for one in names
    )
    done: Any = connect().containers.get(container).exec_run(["sh", "-ec", script])
    if done.exit_code:
        raise SimulationError(
            f"the node {container} has no placeholders for its devices",
            detail=done.output.decode(errors="replace").strip(),
            hint="turn the knob `nodes.placeholders` off",
        )


def _close_metadata(container: str, script: bytes) -> None:
    """What the preparation of a machine does last. Where it fails, the node takes no jobs, as a real one."""
    from orch.images.client import connect
    from orch.providers.orch.local_node import archive

    node: Any = connect().containers.get(container)
    node.put_archive("/", archive({CLOSES_METADATA.lstrip("/"): script.decode()}))
    done: Any = node.exec_run(["bash", CLOSES_METADATA, "prove"])
    if done.exit_code:
        reason = done.output.decode(errors="replace").strip().rpartition("\n")[2]
        node.put_archive("/", archive({FAILED.lstrip("/"): f"{reason}\n"}))


def stop(cloud: SimulatedAccount, instance: str) -> None:
    """Remove the container of an instance, and the network with the last of them."""
    from orch.images.client import connect
    from orch.providers.orch.local_network import STACK_LABEL, LocalNetworkHandler
    from orch.providers.orch.local_node import LocalNodeHandler

    endpoint = cloud.endpoints().get(instance)
    if endpoint is not None:
        LocalNodeHandler().delete(endpoint.container, {})
        cloud.forget(instance)
    network = _network(cloud)
    with _network_lock:
        with cloud.store.transaction():
            made = cloud.store.meta(NETWORK)
        if not made:
            return
        left = connect().api.containers(all=True, filters={"label": f"{STACK_LABEL}={network}"})
        if not left and not _starting:
            LocalNetworkHandler().delete(network, {})
            with cloud.store.transaction():
                cloud.store.put_meta(NETWORK, False)
