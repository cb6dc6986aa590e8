"""Waiting for what machines show once they have booted."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from orch.components.cloud import polling
from orch.components.cloud_errors import CloudRefused

KEY = "ssh-ed25519 AAAA"


@pytest.fixture(autouse=True)
def quick_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "BOOT_S", 0.2)
    monkeypatch.setattr(polling, "BOOT_PAUSE_S", 0.01)
    monkeypatch.setattr(polling, "PLACES_S", 0.2)
    monkeypatch.setattr(polling, "PLACES_PAUSE_S", 0.01)


class Machines:
    """Machines that show their keys when they have been asked so many times; None: never."""

    def __init__(self, **shows: int | None) -> None:
        self.shows = shows
        self.asked: dict[str, int] = dict.fromkeys(shows, 0)

    def look(self, some: Sequence[str]) -> dict[str, str]:
        for each in some:
            self.asked[each] += 1
        return {
            each: f"{KEY} {each}"
            for each in some
            if (after := self.shows[each]) is not None and self.asked[each] >= after
        }


def keys(machines: Machines, *, whole: bool) -> dict[str, str]:
    return polling.wait_for_host_keys(machines.look, [*machines.shows], whole=whole, where="look there")


def test_machines_are_asked_until_they_have_booted_and_no_longer() -> None:
    machines = Machines(a=1, b=3)
    assert keys(machines, whole=True) == {"a": f"{KEY} a", "b": f"{KEY} b"}
    assert machines.asked == {"a": 1, "b": 3}


def test_a_fleet_that_is_all_or_nothing_fails_where_a_node_never_boots() -> None:
    with pytest.raises(CloudRefused) as caught:
        keys(Machines(a=1, b=None, c=2), whole=True)
    assert (caught.value.code, caught.value.detail) == ("ORCH359", "b: look there")
    assert "1 of 3 new nodes show no host key" in caught.value.summary


def test_a_best_effort_fleet_keeps_the_nodes_that_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr("pulumi.log.warn", told.append)  # where it goes depends on who runs the program
    assert [*keys(Machines(a=1, b=None, c=2), whole=False)] == ["a", "c"]
    assert len(told) == 1
    assert "b: look there. They cost what the others do" in told[0]


class Listing:
    """What a cloud lists: one more machine each time it is asked, up to `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.asked = most, 0

    def look(self) -> Sequence[str]:
        self.asked += 1
        return [f"node-{each}" for each in range(min(self.asked, self.most))]


def refused() -> Sequence[str]:
    raise CloudRefused("you may not list the nodes", detail="compute.instances.list")


def test_members_are_looked_for_until_all_are_listed() -> None:
    listing = Listing(9)
    assert len(polling.wait_for_members(listing.look, lambda found: len(found) >= 3, 3, where="there")) == 3
    assert listing.asked == 3


def test_too_few_members_are_an_error_that_tells_how_many_there_are() -> None:
    with pytest.raises(CloudRefused) as caught:
        polling.wait_for_members(Listing(2).look, lambda found: len(found) >= 3, 3, where="in a zone")
    said = caught.value
    assert (said.code, said.summary, said.detail) == ("ORCH359", "2 of 3 nodes are there", "in a zone")
    with pytest.raises(CloudRefused, match="may not list"):
        polling.wait_for_members(refused, bool, 3, where="in a zone")


def test_ranks_go_by_number_where_a_cloud_does_not_tell_where_nodes_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = list[str]()
    monkeypatch.setattr("pulumi.log.warn", said.append)
    assert polling.wait_for_topology(refused, bool, ()) == ()
    assert said == ["ranks go by node number: you may not list the nodes (compute.instances.list)"]
    assert len(polling.wait_for_topology(Listing(2).look, lambda found: len(found) == 3, ())) == 2


WAITING = """\
import asyncio, time
from orch.components.cloud.polling import in_background

def boot():
    print("waiting", flush=True)
    time.sleep(600)

async def program():
    await in_background(boot)

try:
    asyncio.run(program())
except KeyboardInterrupt:
    print("ended", flush=True)
"""


def test_ctrl_c_ends_a_program_that_waits_for_machines_to_boot() -> None:
    """The thread that asks the cloud may sleep for minutes: nobody waits for it."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "waiting\n"
            program.send_signal(signal.SIGINT)
            said, errors = program.communicate(timeout=300)
        finally:
            program.kill()
    assert (said, errors) == ("ended\n", "")


@pytest.mark.parametrize("engine", ["is there", "has gone"])
def test_an_answer_that_comes_when_nobody_waits_any_more_is_left_alone(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble, asking = list[object](), list[threading.Thread]()
    monkeypatch.setattr(threading, "excepthook", trouble.append)
    asked, over = threading.Event(), threading.Event()

    def ask() -> str:
        asking.append(threading.current_thread())
        asked.set()
        over.wait(120)
        return "too late"

    def answered() -> None:
        over.set()
        asking[0].join(120)

    async def program() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: trouble.append(what))
        waiting = asyncio.ensure_future(polling.in_background(ask))
        await asyncio.to_thread(asked.wait, 120)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if engine == "is there":
            await asyncio.to_thread(answered)
            await asyncio.sleep(0.1)

    asyncio.run(program())
    answered()
    assert trouble == []


def test_what_is_asked_in_the_background_is_answered_or_fails_as_it_did() -> None:
    import pulumi

    def refused() -> str:
        raise CloudRefused("you may not look", hint="ask for it")

    def wrong() -> str:
        raise KeyError("a bug")

    assert asyncio.run(polling.in_background(lambda: "key")) == "key"
    with pytest.raises(pulumi.RunError, match="you may not look"):
        asyncio.run(polling.in_background(refused))
    with pytest.raises(KeyError):
        asyncio.run(polling.in_background(wrong))
