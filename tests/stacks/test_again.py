"""What the errors of a fleet's nodes come to together, and when the same is done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch.components.aws.account import errors
from orch.components.request import CloudAnswer
from orch.spec.models import Fleet
from orch.stacks.plans.request import FleetRequest
from orch.stacks.project.project import Project
from orch.stacks.provisioning.gang import Gang, retry
from orch.stacks.pulumi.operation import EngineCall
from orch.stacks.pulumi.progress import Note, Progress
from orch.stacks.stack.state import StackState

AGAIN, ELSEWHERE, STOP = "RequestLimitExceeded", "InsufficientInstanceCapacity", "VcpuLimitExceeded"


def gang(path: Path) -> Gang:
    project = Project(path, "tests", f"file://{path}", None, "sqlite://", "image")
    fleet = Fleet.model_validate({"type": "fleet", "name": "p5", "nodes": "2"})
    return Gang(StackState(project, "p5"), FleetRequest(fleet, path), lambda _: None, classify=answer)


def answer(text: str) -> CloudAnswer | None:
    error = errors.read(text)
    return error.answer if error else None


@pytest.mark.parametrize(
    ("codes", "counts"),
    [
        ([AGAIN], AGAIN),
        ([AGAIN, ELSEWHERE], ELSEWHERE),
        ([ELSEWHERE, AGAIN, STOP], STOP),
        (["SomethingNew", AGAIN], "SomethingNew"),
    ],
)
def test_what_stops_outweighs_what_leads_elsewhere_and_that_a_throttle(
    tmp_path: Path, codes: list[str], counts: str
) -> None:
    call = EngineCall(lambda _: None, planning=False)
    call.errors = {f"urn::{code}": f"creating: api error {code}: no" for code in codes}
    found = gang(tmp_path).answer(call, None)
    assert found is not None
    assert found.reason.startswith(f"{counts}: ")
    assert found.again == (counts == AGAIN)


def test_what_a_throttle_interrupts_goes_on_and_is_told() -> None:
    told: list[Progress] = []
    outcomes = iter([AGAIN, ""])
    ready: list[str] = []
    done = retry(
        "p5",
        lambda: next(outcomes),
        lambda code: errors.by_code(code).answer if code else None,
        told.append,
        between=ready.append,
    )
    assert (done, ready) == ("", [AGAIN])
    assert [each.text for each in told if isinstance(each, Note)] == [
        "once more in 2s: RequestLimitExceeded: AWS asks to come back later"
    ]


def test_what_stops_is_tried_once() -> None:
    outcomes = iter([STOP])
    assert retry("p5", lambda: next(outcomes), lambda code: errors.by_code(code).answer, print) == STOP
