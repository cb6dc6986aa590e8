"""What each host found of each other one, and the two halves of a pair."""

from __future__ import annotations

from orch.runner.errors import CommandTimeout
from orch.runner.hosts.mesh import Listener, PeerConnectivity, read_connectivity, read_listener, views

OPEN = PeerConnectivity(True, size="ok")
SHUT = PeerConnectivity(False, "no answer in 5 s")
PYTHON = Listener(40001, "python3", 77)


def test_a_listener_is_its_port_its_program_and_its_process() -> None:
    assert read_listener("sshd 22\nlisten 40001 python3 77\n", 2222) == PYTHON
    assert read_listener("sshd 2022\n", 22) == Listener(2022)
    assert read_listener("", 22) == Listener(22)


def test_what_a_host_says_of_its_peers_is_read_in_whatever_order_it_came() -> None:
    text = "reach 1 no Connection refused\nreach 0 ok\nsize 0 no the way carries 1400\n"
    assert read_connectivity(text, ["a", "b", "c"]) == {
        "a": PeerConnectivity(True, size="no", size_why="the way carries 1400"),
        "b": PeerConnectivity(False, "Connection refused"),
        "c": PeerConnectivity(False, "it was not tried to the end"),
    }


def test_a_host_that_cannot_connect_at_all_says_so_of_every_peer() -> None:
    found = read_connectivity("cannot it has neither bash nor python3 to connect with\n", ["a"])
    assert found["a"].why == "it has neither bash nor python3 to connect with"


def test_a_way_that_is_open_one_way_only_is_seen_from_both_ends() -> None:
    seen = views(
        {"a": {"b": OPEN, "c": OPEN}, "b": {"a": SHUT, "c": OPEN}, "c": {"a": OPEN, "b": OPEN}},
        dict.fromkeys("abc", PYTHON),
        {},
    )
    assert seen["a"].unreached_by == (("b", "no answer in 5 s"),)
    assert seen["a"].unreached == ()
    assert seen["b"].unreached == (("a", "no answer in 5 s"),)
    assert seen["c"].unreached == seen["c"].unreached_by == ()


def test_a_peer_of_which_only_sshd_was_tried_is_a_guess() -> None:
    seen = views({"a": {"b": PeerConnectivity(True)}}, {"a": PYTHON, "b": Listener(22)}, {})
    assert (seen["a"].sshd_port_only, seen["a"].unmeasured_mtu) == (("b",), ("b",))


def test_a_host_that_failed_meanwhile_is_told_by_its_error() -> None:
    error = CommandTimeout("a command on node b took longer than 15 s")
    seen = views({"a": {}}, {"a": PYTHON}, {"b": error})
    assert seen["b"].failure == "a command on node b took longer than 15 s"
