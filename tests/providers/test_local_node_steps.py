"""A node that runs and cannot be asked what its steps came to is not taken for one that is well."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import requests
from docker.errors import APIError

from orch.providers.orch.containers import kept_out


class Container:
    """A container whose command ends like this; after it, `then` is its status."""

    def __init__(self, answer: object, then: str = "running") -> None:
        self.status, self._then, self._answer = "running", then, answer

    def exec_run(self, command: list[str]) -> Any:
        del command
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def reload(self) -> None:
        if self._then == "gone":
            raise APIError("No such container")
        self.status = self._then


def answered(exit_code: int, output: str) -> SimpleNamespace:
    return SimpleNamespace(exit_code=exit_code, output=output.encode())


@pytest.mark.parametrize(
    "answer",
    [
        answered(126, "OCI runtime exec failed: procReady not received"),
        answered(137, ""),
        APIError("procReady not received"),
        requests.ReadTimeout("procReady not received"),
    ],
    ids=["exit code", "killed", "refused", "no answer"],
)
def test_a_node_that_cannot_be_asked_is_kept_out_while_it_runs(answer: object) -> None:
    told = kept_out(Container(answer), {"stack": "lab/steps/0"})
    assert told.startswith("it does not tell of its steps: ")
    assert told.endswith(("procReady not received", "exit code 137"))
    for then in ("exited", "gone"):  # what has just ended says so by its status
        assert kept_out(Container(answer, then), {"stack": "lab/steps/0"}) == ""


def test_what_its_steps_say_is_told() -> None:
    said = answered(0, "init step drivers failed with 3\n")
    assert kept_out(Container(said), {"stack": "lab/steps/0"}) == "init step drivers failed with 3"
    assert kept_out(Container(answered(0, "")), {"stack": "lab/steps/0"}) == ""
