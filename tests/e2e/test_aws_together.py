"""Two who bring one fleet up at once, its state in a bucket: none ends what the other is making."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.engine.remote_state import KIND, Shared, bucket, kill_tree, recorded_instances
from kit.support import until

pytestmark = pytest.mark.timeout(600)

HELD = 9


@pytest.fixture
def state() -> Iterator[str]:
    with bucket() as url:
        yield url


def launched(there: Shared) -> bool:
    return any(call.action == "RunInstances" for call in there.calls_made())


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def test_a_second_up_leaves_what_the_first_is_making_alone(tmp_path: Path, state: str) -> None:
    there = Shared.begin(tmp_path, state, 2)
    first = there.caller("up")
    until(lambda: launched(there), 120, "an instance is being made")
    code, err = finish(there.caller("up"))
    assert code == HELD, err
    assert "is being changed by somebody else" in err
    there.go()
    code, err = finish(first)
    assert code == 0, err
    assert {call.action for call in there.calls_made()} == {"RunInstances"}
    assert len(there.nodes(KIND)) == 2
    assert recorded_instances(there) == set(there.nodes(KIND))


ENDS = ("nobody", "first", "second", "both")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(20))
def test_whoever_is_killed_none_ends_what_another_makes(tmp_path: Path, state: str, turn: int) -> None:
    chance = random.Random(turn)
    there = Shared.begin(tmp_path, state, 2)
    victim = ENDS[turn % 4]
    callers = [there.caller("up")]
    if turn % 3:
        until(lambda: launched(there), 120, "an instance is being made")
    callers.append(there.caller("up"))
    victims = {"nobody": [], "first": callers[:1], "second": callers[1:], "both": callers}[victim]
    until(lambda: launched(there), 120, "an instance is being made")
    ended: dict[int, float] = {}
    acts = [*victims, None]  # None: who makes instances hears of them from then on
    chance.shuffle(acts)
    for process in acts:
        time.sleep(chance.uniform(0.0, 6.0))
        if process is None:
            there.go()
        elif process.poll() is None:
            kill_tree(process)
            ended[process.pid] = time.time()
    for process in callers:
        if process.pid not in ended:
            code, err = finish(process)
            ended[process.pid] = time.time()
            assert code in (0, HELD), err
    # One more, who clears up if need be.
    code, err = finish(again := there.caller("up"))
    if code == HELD:
        assert finish(there.caller("unlock"))[0] == 0
        code, err = finish(again := there.caller("up"))
    assert code == 0, err
    makers = {call.caller for call in there.calls_made() if call.action == "RunInstances"}
    assert makers <= {*ended, again.pid}
    for call in there.calls_made():
        if call.action == "TerminateInstances":
            others = [pid for pid in makers - {call.caller} if ended.get(pid, time.time()) > call.at]
            assert others == [], f"{call} while {others} were making instances"
    assert len(there.nodes(KIND)) == 2
    assert recorded_instances(there) == set(there.nodes(KIND))
    code, err = finish(there.caller("down"))
    assert code == 0, err
    assert there.cloud.everything() == {}
