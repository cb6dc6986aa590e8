"""Disks of a cloud that are changing, and what may become of a volume that is up."""

from __future__ import annotations

from typing import Any

import pytest

from orch.components.aws.volumes import AwsVolumes
from orch.components.cloud import volumes as cloud_volumes
from orch.components.cloud.volumes import Holders, StillChanging
from orch.components.cloud_errors import CloudError, CloudRefused, Kind
from orch.components.registry.volumes import disks_of, plan_volume, volumes_of
from orch.components.volumes import (
    Account,
    DiskVolumes,
    FolderVolumes,
    VolumeError,
    VolumePlan,
    VolumeRequest,
)
from orch.runner.errors import DetachPending
from orch.spec.findings import PlanError
from orch.spec.models import Volume
from orch.spec.state import NodeState
from orch.spec.volume_state import VolumeState

DATA = VolumeState(name="data", backend="aws", volume_id="vol-1", region="r", zone="r-1", size_mib=102400)
NODE = NodeState.model_validate(
    {
        "index": 0,
        "name": "n0",
        "address": "10.0.0.1",
        "user": "u",
        "host_key": "ssh-ed25519 AAAA",
        "machine": "i-1",
    }
)
ATTACHED, FREE = Holders({"i-1": "/dev/sdf"}), Holders()


class Disks(AwsVolumes):
    """An account whose answers are known beforehand; the last one stays."""

    def __init__(self, *answers: Holders | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def client(self, account: Account, region: str) -> Any:
        return None

    def holders(self, client: Any, volume: VolumeState) -> Holders | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def attach_disk(self, client: Any, volume: VolumeState, instance: str, *, read_only: bool) -> None:
        self.asked.append(f"attach to {instance}")

    def detach_disk(self, client: Any, volume: VolumeState, instance: str) -> None:
        self.asked.append(f"detach from {instance}")


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_volumes, "PAUSE_S", 0.0)


def test_a_disk_that_is_being_detached_is_attached_anew_once_it_is_free() -> None:
    detaching = Holders({"i-1": "/dev/sdf"}, "detaching")
    disks = Disks(detaching, detaching, FREE, ATTACHED)
    paths = disks.attach(Account(), DATA, NODE, read_only=False).paths
    assert (disks.asked, paths[-1]) == (["attach to i-1"], "/dev/sdf")


def test_a_detaching_that_takes_too_long_is_told_from_one_that_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cloud_volumes, "WAIT_S", 0.0)
    slow = Disks(ATTACHED, Holders({"i-1": ""}, "detaching"))
    with pytest.raises(DetachPending, match="volume data is detaching for 0 s"):
        slow.detach(Account(), DATA, NODE)
    assert slow.asked == ["detach from i-1"]
    # One that an earlier call has asked for.
    slow = Disks(Holders({"i-1": ""}, "detaching"))
    with pytest.raises(DetachPending, match="volume data is detaching for 0 s"):
        slow.detach(Account(), DATA, NODE)
    assert slow.asked == []


def test_an_accepted_attaching_that_the_cloud_does_not_show_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = Disks(FREE, FREE, FREE, Holders({"i-1": ""}, "attaching"), ATTACHED)
    assert disks.attach(Account(), DATA, NODE, read_only=False).paths[-1] == "/dev/sdf"
    assert disks.asked == ["attach to i-1"]
    monkeypatch.setattr(cloud_volumes, "STALE_S", -1.0)
    with pytest.raises(VolumeError, match="is attached to nothing"):
        Disks(FREE).attach(Account(), DATA, NODE, read_only=False)


def refused(kind: Kind = "permission", status: int | None = 403) -> CloudRefused:
    return CloudRefused("refused", error=CloudError("AWS", "it", "No", kind, "no", None), status=status)


LOST = CloudRefused("AWS cannot be reached", code="ORCH358")


class Failing(Disks):
    """An account that fails before it is asked to detach, when it is, or whenever it is asked after that."""

    def __init__(
        self,
        *,
        before: Exception | None = None,
        asked: Exception | None = None,
        later: Exception | None = None,
    ) -> None:
        super().__init__(ATTACHED)
        self.errors = (asked, later, before)

    def holders(self, client: Any, volume: VolumeState) -> Holders | None:
        error = self.errors[1 if self.asked else 2]
        if error:
            raise error
        return super().holders(client, volume)

    def detach_disk(self, client: Any, volume: VolumeState, instance: str) -> None:
        super().detach_disk(client, volume, instance)
        if self.errors[0]:
            raise self.errors[0]


@pytest.mark.parametrize(
    "disks",
    [
        Failing(asked=LOST),
        Failing(asked=refused("throttle", 503)),
        Failing(asked=refused("unknown", 500)),
        Failing(asked=refused("unknown", None)),
        Failing(asked=refused("gone", 400)),
        Failing(asked=StillChanging("it takes long")),
        Failing(later=LOST),
        Failing(later=refused()),
        Failing(before=LOST),
    ],
)
def test_a_detaching_whose_answer_is_lost_may_still_happen(disks: Failing) -> None:
    with pytest.raises(DetachPending) as caught:
        disks.detach(Account(), DATA, NODE)
    assert caught.value.summary == next(each for each in disks.errors if each).args[0]


@pytest.mark.parametrize(
    "error",
    [refused(), refused("parameter", 400), refused("unknown", 400), CloudRefused("log in", code="ORCH303")],
)
def test_a_detaching_that_the_cloud_refuses_is_over(error: CloudRefused) -> None:
    for disks in (Failing(asked=error), Failing(before=error)):
        with pytest.raises(CloudRefused) as caught:
            disks.detach(Account(), DATA, NODE)
        assert caught.value is error


def test_an_accepted_detaching_that_the_cloud_does_not_show_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = Disks(ATTACHED, ATTACHED, ATTACHED, FREE)
    stale.detach(Account(), DATA, NODE)
    assert (stale.asked, stale.answers) == (["detach from i-1"], [FREE])
    monkeypatch.setattr(cloud_volumes, "STALE_S", -1.0)
    with pytest.raises(DetachPending, match="still attached to n0"):
        Disks(ATTACHED).detach(Account(), DATA, NODE)


@pytest.mark.parametrize("answer", [FREE, None, Holders({"i-2": "/dev/sdf"})])
def test_a_disk_that_the_node_does_not_have_is_left_alone(answer: Holders | None) -> None:
    disks = Disks(answer)
    disks.detach(Account(), DATA, NODE)
    assert disks.asked == []
    assert disks.users(Account(), DATA) == (tuple(answer.devices) if answer else ())


def test_who_has_folders_and_who_has_disks() -> None:
    assert isinstance(disks_of("aws"), DiskVolumes)
    assert isinstance(volumes_of("local"), FolderVolumes)
    with pytest.raises(VolumeError, match="they are not attached"):
        disks_of("local")


def replan(monkeypatch: pytest.MonkeyPatch, before: VolumeState, after: VolumeState) -> VolumePlan:
    """The plan of a volume that is up as `before`, where its backend would make it `after`."""
    plan = VolumePlan(after, (), lambda: pytest.fail("nothing is registered here"))
    monkeypatch.setattr(AwsVolumes, "plan", lambda self, request: plan)
    volume = Volume.model_validate({"name": "data", "backend": "aws", "region": "r", "size": "1GB"})
    return plan_volume(VolumeRequest(volume, Account(), before, "ab12cd"))


def test_a_disk_that_existed_before_is_compared_with_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = DATA.model_copy(update={"external": True})
    for after in (
        DATA.model_copy(update={"size_mib": 10240, "volume_id": ""}),
        registered.model_copy(update={"size_mib": 10240, "volume_id": "vol-2"}),
    ):
        assert replan(monkeypatch, registered, after).state == after


def test_what_is_replaced_may_be_smaller_and_is_refused_for_its_protection_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = {"size_mib": 10240, "zone": "r-2"}
    bare = DATA.model_copy(update={"protect": False})
    assert replan(monkeypatch, bare, bare.model_copy(update=elsewhere)).state.zone == "r-2"
    for change, path in ((elsewhere, "availability_zone"), ({"size_mib": 10, "external": True}, "volume_id")):
        with pytest.raises(PlanError) as caught:
            replan(monkeypatch, DATA, DATA.model_copy(update=change))
        assert (caught.value.code, caught.value.path) == ("ORCH348", path)
    with pytest.raises(PlanError) as caught:
        replan(monkeypatch, bare, bare.model_copy(update={"size_mib": 10240}))
    assert caught.value.code == "ORCH264"
