"""Rules of their own: interfaces, indices, findings at their places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kit.clouds.aws_cases import Case

from orch.catalog.aws.machines import nics
from orch.components.aws.nics import Interface, interfaces, words
from orch.components.node_count import all_there, folded, live_indices, node_indices
from orch.components.request import PriorState
from orch.spec.diagnostics import Severity
from orch.spec.errors import ExitCode
from orch.spec.findings import Finding, PlanErrors, settle
from orch.spec.loader.load import InvalidConfiguration, load_paths
from orch.spec.models import Fleet


@pytest.mark.parametrize(
    ("name", "fast", "addresses"),
    [
        ("p4d.24xlarge", 4, 1),
        ("p5.4xlarge", 1, 1),
        ("p5.48xlarge", 32, 1),
        ("p5en.48xlarge", 16, 1),
        ("p6-b200.48xlarge", 8, 1),
        ("p6-b300.48xlarge", 16, 1),
        ("g6e.24xlarge", 2, 1),
        ("trn1.32xlarge", 8, 1),
        ("c7i.8xlarge", 0, 1),
    ],
)
def test_all_efa_interfaces_are_used_and_one_address(name: str, fast: int, addresses: int) -> None:
    made = interfaces(nics()[name], efa=True)
    assert sum(each.kind != "interface" for each in made) == fast
    assert sum(each.addressed for each in made) == addresses
    assert made[0] == Interface(0, 0, "interface")
    assert len({(each.card, each.device) for each in made}) == len(made)


def test_no_card_holds_more_than_it_can() -> None:
    for each in nics().values():
        made = interfaces(each, efa=True)
        for card in range(each.cards):
            assert sum(one.card == card for one in made) <= (each.per_card or 2), each.type
        assert max(one.card for one in made) < max(each.cards, 1), each.type


def test_cards_that_are_not_known_carry_ip_traffic_alone() -> None:
    unknown = {each.type for each in nics().values() if not each.cards}
    assert {name.split(".")[0] for name in unknown} == {"hpc6a", "hpc6id", "hpc7a", "hpc8a"}
    assert {interfaces(nics()[name], efa=True) for name in unknown} == {(Interface(0, 0, "interface"),)}


def test_where_card_0_has_no_efa_it_carries_ip_alone() -> None:
    made = interfaces(nics()["p6-b300.48xlarge"], efa=True)
    assert [one.kind for one in made if one.card == 0] == ["interface"]
    assert {one.card for one in made if one.kind == "efa-only"} == set(range(1, 17))


def test_a_card_for_one_interface_carries_both_in_one() -> None:
    narrow = replace(nics()["p5.48xlarge"], per_card=1, cards=2, efa=2)
    made = interfaces(narrow, efa=True)
    assert made == (Interface(0, 0, "efa"), Interface(1, 0, "efa-only"))
    assert words(narrow, made)[0].endswith("1 address of the subnet used by them")


def test_the_plan_says_what_fast_nccl_needs() -> None:
    each = nics()["p5.48xlarge"]
    assert words(each, interfaces(each, efa=True))[0] == (
        "each node: 32 network cards, 32 EFA interfaces, 3200 Gbps; no addresses of the subnet used by them"
    )


@pytest.mark.parametrize(
    ("pinned", "wanted", "indices"),
    [
        ("", 3, (0, 1, 2)),
        ("0-2", 5, (0, 1, 2, 3, 4)),
        ("0,2-3", 4, (0, 1, 2, 3)),
        ("0,2-3", 2, (0, 2)),
        ("5", 2, (0, 5)),
        ("0-2", 0, ()),
    ],
)
def test_live_nodes_keep_their_numbers(pinned: str, wanted: int, indices: tuple[int, ...]) -> None:
    fleet = Fleet.model_validate({"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": str(wanted)})
    assert node_indices(fleet, PriorState({"indices": pinned})) == indices


@pytest.mark.parametrize(
    ("wanted", "there", "planned", "whole"),
    [
        (3, (0, 1, 2), None, True),
        (2, (0, 1, 2), None, True),
        (3, (0, 2), None, False),
        (4, (0, 1, 2), None, False),
        (3, (), None, False),
        (3, (0, 1, 2), (0, 1, 2), True),
        (3, (0, 1), (0, 1), False),
    ],
    ids=["all", "one too many", "one was removed", "one more", "not looked at", "one group", "of two groups"],
)
def test_a_quota_is_left_out_where_the_whole_fleet_is_there(
    wanted: int, there: tuple[int, ...], planned: tuple[int, ...] | None, whole: bool
) -> None:
    """A part of it that is there counts beside another that grows."""
    fleet = Fleet.model_validate({"type": "fleet", "name": "p5", "backends": ["aws"], "nodes": str(wanted)})
    prior = PriorState({"indices": "0-2"}, existing_nodes=frozenset(f"p5-{index}" for index in there))
    assert all_there(fleet, prior, planned) is whole


def test_folded_indices_unfold_to_the_same() -> None:
    assert folded([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert live_indices(PriorState({"indices": "0-2,5,7-8"})) == {0, 1, 2, 5, 7, 8}


def test_findings_get_their_places_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yml"
    file.write_text(
        "type: fleet\nname: p5\nbackends: [aws]\nnodes: 2\n"
        "network:\n  subnets: [subnet-0]\nbudget: {hourly: 5}\n"
    )
    (document,) = load_paths([file]).require().documents
    over = Finding("ORCH281", "budget.hourly", "too dear")
    small = Finding("ORCH220", "network.subnets", "too small")
    placed = PlanErrors([small, over]).placed(document)
    assert isinstance(placed, InvalidConfiguration)
    assert [(each.code, each.span.line, each.span.column) for each in placed.diagnostics] == [
        ("ORCH220", 6, 12),
        ("ORCH281", 7, 18),
    ]
    assert placed.exit_code == ExitCode.CONFIG
    assert PlanErrors([over]).placed(document).exit_code == ExitCode.POLICY


def test_a_change_that_only_new_nodes_get_is_told() -> None:
    case = Case.of("p5")

    def told() -> list[str]:
        return [each.path for each in case.plan().warnings if each.code == "ORCH232"]

    case.data["pins"] = dict(case.plan().pins)
    assert told() == []
    case.data["fleet"]["authorized_keys"] = [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICgvb9Y3p3xNiXFTVbkvO/VKx8MxZDOrCE0PMkkIMM9a"
    ]
    assert told() == ["authorized_keys"]
    case.data["fleet"]["init"] = ["echo 1"]
    assert told() == ["init", "authorized_keys"]
    case.data["pins"] = dict(case.plan().pins)
    assert told() == []


def test_nodes_of_a_version_that_left_the_metadata_open_are_told_once_and_kept() -> None:
    case = Case.of("p5")
    assert not [each for each in case.plan().warnings if each.code == "ORCH232"]
    now = case.plan().pins
    case.data["pins"] = {key: value for key, value in now.items() if key != "boot.metadata"}
    (told,) = [each for each in case.plan().warnings if each.code == "ORCH232"]
    assert "can read their instance metadata" in told.summary
    assert case.plan().layout_unchanged, "nodes that run stay as they are"
    case.data["pins"] = dict(case.plan().pins)
    assert not [each for each in case.plan().warnings if each.code == "ORCH232"]


def test_warnings_alone_stop_nothing() -> None:
    warning = Finding("ORCH223", "placement", "slow", severity=Severity.WARNING)
    assert settle([warning, warning]) == (warning,)
    with pytest.raises(PlanErrors):
        settle([warning, Finding("ORCH220", "network", "too small")])


def wrong(case: Case) -> list[tuple[str, str, str]]:
    with pytest.raises(PlanErrors) as caught:
        case.plan()
    errors = [each for each in caught.value.findings if each.severity is Severity.ERROR]
    return [(each.code, each.path, each.summary) for each in errors]


@pytest.mark.parametrize("name", ["p5", "own-jump-host"])
def test_ipv6_networks_are_refused_where_they_stand_for_nobody_comes_from_them(name: str) -> None:
    case = Case.of(name)
    cidrs = ["198.51.100.0/24", "2001:db8::/32"]
    case.data["fleet"]["network"] = {**case.data["fleet"].get("network", {}), "ssh_cidrs": cidrs}
    ((code, path, summary),) = wrong(case)
    assert (code, path) == ("ORCH226", "network.ssh_cidrs[1]")
    assert "2001:db8::/32" in summary


def test_ipv6_networks_of_the_backend_are_refused_too() -> None:
    case = Case.of("p5")
    case.data["settings"] = {"ssh_cidrs": ["2001:db8::/32"]}
    assert [each[:2] for each in wrong(case)] == [("ORCH226", "network")]


def test_the_plan_says_where_a_given_jump_host_comes_from() -> None:
    assert "SSH: over the given jump host, from 10.9.0.0/16" in Case.of("own-jump-host").plan().reasons
