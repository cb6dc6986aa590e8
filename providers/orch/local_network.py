"""`orch:local:Network`: a bridge network of this machine's Docker that the nodes of one fleet share.

Inputs: `name`, `stack`. Outputs: `subnet` (CIDR, a free /24 found at creation), `gateway`.
"""

from __future__ import annotations

import ipaddress
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from docker.errors import APIError, NotFound
from docker.types import IPAMConfig, IPAMPool

from orch.images.client import connect
from orch.images.errors import DockerUnavailable
from orch.providers.orch.handler import OBSERVED, Inputs, ProviderError, State

POOL = ipaddress.ip_network("10.212.0.0/16")
"""Where fleets of containers get their /24: private, and clear of Docker's own 172.17.0.0/12 and
192.168.0.0/16 pools."""

STACK_LABEL = "orch.stack"


class LocalNetworkHandler:
    computed: ClassVar[frozenset[str]] = frozenset({"subnet", "gateway"})
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        return [(key, "must be set") for key in ("name", "stack") if inputs.get(key) in (None, "")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        return True

    def create(self, inputs: Inputs) -> tuple[str, State]:
        client = connect()
        name, stack = inputs["name"], inputs["stack"]
        for network in client.networks.list(names=[name]):
            if network.name != name:
                continue
            if (network.attrs.get("Labels") or {}).get(STACK_LABEL) != stack:
                raise ProviderError(
                    f"a Docker network {name} is there that is not this stack's",
                    hint=f"remove it (`docker network rm {name}`) or rename the fleet",
                    code="ORCH341",
                )
            return name, _outputs(network)  # left by a creation that was killed: the same one
        used_networks = _used_networks(client)
        start = zlib.crc32(name.encode()) % 256
        subnets = list(POOL.subnets(new_prefix=24))
        for subnet in subnets[start:] + subnets[:start]:
            if any(subnet.overlaps(other) for other in used_networks):
                continue
            try:
                network = client.networks.create(
                    name,
                    driver="bridge",
                    check_duplicate=True,
                    labels={STACK_LABEL: stack},
                    ipam=IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))]),
                )
            except APIError as error:
                if "overlaps" in str(error):  # routes that only Docker's own machine knows
                    continue
                raise ProviderError(
                    f"Docker did not make the network {name}", detail=error.explanation, code="ORCH340"
                ) from error
            network.reload()
            return name, _outputs(network)
        raise ProviderError(
            f"no free /24 network is left in {POOL}",
            detail="Docker networks and routes of this machine cover all of it",
            hint="remove networks that nobody uses: `docker network prune`",
            code="ORCH320",
        )

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            network = connect().networks.get(resource_id)
        except NotFound:
            return None
        except DockerUnavailable as error:
            outputs = {key: state[key] for key in self.computed if key in state}
            return {**outputs, OBSERVED: {"reachable": False, "reason": error.summary}}
        return _outputs(network)

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        return {key: state[key] for key in self.computed}

    def delete(self, resource_id: str, state: State) -> None:
        client = connect()
        try:
            network = client.networks.get(resource_id)
            network.reload()
            for endpoint in network.attrs.get("Containers") or {}:
                with suppress(NotFound):  # gone by itself meanwhile
                    network.disconnect(endpoint, force=True)
            network.remove()
        except NotFound:
            return


def _outputs(network: Any) -> State:
    network.reload()
    config = network.attrs["IPAM"]["Config"][0]
    return {"subnet": config["Subnet"], "gateway": config["Gateway"].split("/")[0], OBSERVED: {}}


def _used_networks(client: Any) -> list[ipaddress.IPv4Network]:
    """Networks that Docker or this machine's routing table already uses."""
    networks: list[ipaddress.IPv4Network] = []
    for network in client.networks.list():
        for config in (network.attrs.get("IPAM") or {}).get("Config") or []:
            subnet = ipaddress.ip_network(config["Subnet"], strict=False)
            if isinstance(subnet, ipaddress.IPv4Network):
                networks.append(subnet)
    table = Path("/proc/net/route")
    if table.exists():  # Linux; elsewhere Docker's refusal is the judge
        for line in table.read_text().splitlines()[1:]:
            _, destination, _, _, _, _, _, mask, *_ = line.split()
            if int(mask, 16):
                address = int.from_bytes(bytes.fromhex(destination), "little")
                prefix = int(mask, 16).bit_count()
                networks.append(ipaddress.IPv4Network((address, prefix), strict=False))
    return networks
