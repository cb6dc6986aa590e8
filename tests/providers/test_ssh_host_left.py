"""A host that does not answer leaves its fleet all the same, and what stays on it is told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from pulumi.provider.experimental import provider as api

from orch.providers.orch import plugin
from orch.providers.orch.handler import LeftBehind
from orch.providers.orch.ssh_host import SshHostHandler
from orch.providers.orch.values import wire_map
from orch.runner.hosts.registration import enter, mark
from orch.runner.ledger.run_folder import new_key_pair
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.progress import EngineStep, Note

URN = "urn:pulumi:lab::tests::orch:fleet:Fleet$orch:ssh:Host::gpu1"


@pytest.fixture
def silent() -> dict[str, Any]:
    """The record of a host whose port nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    host = {"name": "gpu1", "stack": "organization/tests/lab", "address": "127.0.0.1", "port": port}
    return {**host, "user": "ops", "host_key": new_key_pair().public}


def test_what_stays_on_a_host_that_does_not_answer_is_told_with_the_mark_of_its_keys(
    silent: dict[str, Any],
) -> None:
    with pytest.raises(LeftBehind) as left:
        SshHostHandler(leave_s=0.5).delete("gpu1", silent)
    said = f"{left.value.summary} {left.value.detail} {left.value.hint}"
    for text in ("gpu1", "unreachable", "/var/lib/orch", f"`{mark(silent['stack'])}`"):
        assert text in said
    assert f" {mark(silent['stack'])}'" in enter(silent["stack"], "ops", ["ssh-ed25519 AAAA ada"]).text


def test_it_is_no_error_and_the_engine_is_warned(
    silent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugin._handlers, "orch:ssh:Host", SshHostHandler(leave_s=0.5))
    warned: list[tuple[str, str]] = []
    provider = plugin.OrchProvider(warn=lambda urn, text: warned.append((urn, text)))
    asyncio.run(provider.delete(api.DeleteRequest(URN, "gpu1", wire_map(silent, frozenset()), 0)))
    ((urn, text),) = warned
    assert urn == URN
    assert "nothing was taken away there" in text


@pytest.mark.parametrize(("urn", "told"), [(URN, 1), ("", 0), ("urn:pulumi:lab::tests::aws:ec2:Vpc::net", 0)])
def test_a_warning_of_our_own_provider_reaches_whoever_called(urn: str, told: int) -> None:
    heard: list[EngineStep | Note] = []
    event = {"severity": "warning", "urn": urn, "message": "gpu1 leaves the fleet\n"}
    EngineCall(heard.append, planning=False)({"diagnosticEvent": event})
    assert heard == [Note("warning: gpu1 leaves the fleet")] * told
