"""Reading a registered host never fails: what cannot be told is its status."""

from __future__ import annotations

from typing import Any

import pytest

from orch.providers.orch.handler import OBSERVED
from orch.providers.orch.ssh_host import SshHostHandler

STATE: dict[str, Any] = {
    "name": "gpu1",
    "stack": "s",
    "address": "127.0.0.1",
    "port": 9,
    "user": "ops",
    "host_key": "ssh-ed25519 AAAA",
    "facts": {"os": "Linux"},
}


@pytest.mark.parametrize(
    "odd",
    [
        {"port": "nine"},
        {"address": None},
        {"host_key": None},
        {"jump": [{"address": "gate"}]},
        {"jump": [{"nonsense": 1}]},
        {"user": 7},
        {"address": "$(touch x)", "proxy_command": "nc %h %p"},
    ],
    ids=str,
)
def test_a_record_that_makes_no_sense_is_the_host_s_status(odd: dict[str, Any]) -> None:
    found = SshHostHandler().read("gpu1", {**STATE, **odd})
    assert found is not None
    assert found["facts"] == STATE["facts"]
    assert found[OBSERVED]["status"] != "reachable"
