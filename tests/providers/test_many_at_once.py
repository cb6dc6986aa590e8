"""As many resources as a file allows are worked on at once: most of that work is waiting for a host."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar, cast

import pytest
from pulumi.provider.experimental import provider as api
from pydantic import ValidationError

from orch.providers.orch import plugin, serving
from orch.providers.orch.handler import Handler, Inputs, State
from orch.providers.orch.values import wire_map
from orch.runner.node_api.connector import FAN_OUT
from orch.spec.models.ssh import SshConfig

URN = "urn:pulumi:lab::tests::orch:fleet:Fleet$orch:ssh:Host::gpu"


class WaitsForAll:
    """To make one takes until all others are begun."""

    computed: ClassVar[frozenset[str]] = frozenset()
    secrets: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, number: int) -> None:
        self._all = threading.Barrier(number, timeout=60)

    def create(self, inputs: Inputs) -> tuple[str, State]:
        self._all.wait()
        return inputs["name"], {}


def test_hosts_that_take_long_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = cast("Handler", WaitsForAll(FAN_OUT))
    monkeypatch.setitem(plugin._handlers, "orch:ssh:Host", waits)

    async def up() -> list[Any]:
        provider = plugin.OrchProvider()
        hosts = [wire_map({"name": f"gpu{index}"}, frozenset()) for index in range(FAN_OUT)]
        requests = [api.CreateRequest(f"{URN}{i}", each, 0, False) for i, each in enumerate(hosts)]
        return await asyncio.gather(*(provider.create(each) for each in requests))

    made = asyncio.run(up())
    assert [each.resource_id for each in made] == [f"gpu{index}" for index in range(FAN_OUT)]


def test_what_a_file_may_ask_for_is_not_more_than_that() -> None:
    def asked(parallel: int) -> SshConfig:
        return SshConfig.model_validate({"hosts": ["gpu1"], "parallel": parallel})

    assert asked(serving.AT_ONCE).parallel == serving.AT_ONCE
    with pytest.raises(ValidationError):
        asked(serving.AT_ONCE + 1)
