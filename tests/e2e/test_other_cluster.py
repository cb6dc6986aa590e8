"""A context that leads to another cluster: nothing there counts as gone, nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.kubernetes.memorycluster import Served, clusters
from kit.support import Folder, Said

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("engine")]

PROJECT = "project: tests\nbackends: [{type: kubernetes, namespace: lab, kubeconfig: {filename: kube.yml}}]\n"
VOLUME = "type: volume\nname: data\nbackend: kubernetes\nsize: 10GB\nprotect: false\n"
FLEET = "type: fleet\nname: lab\nbackends: [kubernetes]\nnodes: 0..1\nresources: {cpu: 2, memory: 4GB}\n"
OF_VOLUMES: list[tuple[str, ...]] = [
    ("drift", "data.yml"),
    ("preview", "data.yml"),
    ("up", "data.yml", "--yes"),
    ("refresh", "data.yml"),
    ("volume", "delete", "data", "--yes"),
    ("down", "data.yml", "--yes"),
]
OF_FLEETS: list[tuple[str, ...]] = [
    ("drift", "lab"),
    ("preview", "lab.yml"),
    ("up", "lab.yml", "--yes"),
    ("refresh", "lab"),
    ("down", "lab", "--yes"),
]


class Lab:
    """A project, and two clusters to which its one context may lead."""

    def __init__(self, path: Path, here: Served, there: Served) -> None:
        self.folder, self.here, self.there = Folder(path), here, there
        self.kubeconfig = path / "kube.yml"
        self.stacks = path / ".orch" / "state" / ".pulumi" / "stacks" / "tests"
        for name, text in (("orch.yml", PROJECT), ("data.yml", VOLUME), ("lab.yml", FLEET)):
            self.folder.write(name, text)
        here.lead(self.kubeconfig)

    def orch(self, *words: str) -> Said:
        return self.folder.orch(*words, env={"ORCH_KUBERNETES_PLUGIN": "own"})

    def done(self, *words: str) -> Said:
        said = self.orch(*words)
        assert said.code == 0, (words, said.out, said.err)
        return said

    def contents(self) -> list[Any]:
        """The files of the stacks, and what both clusters have."""
        files = {each.name: each.read_bytes() for each in sorted(self.stacks.iterdir()) if each.is_file()}
        return [files, self.here.objects, self.there.objects, len(self.here.changes), len(self.there.changes)]

    def refused(self, *words: str, code: str = "ORCH459") -> Said:
        """A command that ends with 9, and has changed neither cluster nor state."""
        before = repr(self.contents())
        said = self.orch(*words)
        assert (said.code, f"error {code}:" in said.err) == (9, True), (words, said.code, said.out, said.err)
        assert repr(self.contents()) == before, words
        return said

    def account(self, stack: str) -> dict[str, str] | None:
        """The account that a stack is recorded to belong to."""
        file = self.stacks / f"{stack}.pulumi-tags"
        tags = json.loads(file.read_text())["tags"] if file.exists() else {}
        return json.loads(tags.get("orch:accounts", "{}")).get("kubernetes")

    def untagged(self, stack: str) -> None:
        """Have the stack as an earlier version recorded it."""
        (self.stacks / f"{stack}.pulumi-tags").unlink()

    def without_identity(self, stack: str) -> None:
        """Have the fleet as 38dd8daa made it where the namespace kube-system could not be read."""
        self.untagged(stack)
        file = self.stacks / f"{stack}.json"
        whole = json.loads(file.read_text())
        for each in whole["checkpoint"]["latest"]["resources"]:
            for part in (each.get("inputs") or {}, each.get("outputs") or {}):
                if "clusterIdentifier" in part:
                    part["clusterIdentifier"] = "lab"
                for name in ("cluster", "cluster_identifier"):
                    (part.get("pins") or {}).pop(name, None)
                    ((part.get("fleet") or {}).get("queue") or {}).pop(name, None)
        file.write_text(json.dumps(whole))
        assert self.here.uid is not None
        assert f"{self.here.uid}+server" not in file.read_text()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    project = tmp_path / "project"
    project.mkdir()
    with clusters(tmp_path, "uid-here", "uid-there") as (here, there):
        yield Lab(project, here, there)


def test_a_volume_is_believed_to_be_gone_on_its_own_cluster_alone(lab: Lab) -> None:
    lab.done("up", "data.yml", "--yes")
    (claim,) = lab.here.made
    account = lab.account("volume.data")
    assert account is not None
    assert account["id"].startswith("uid-here+server/")
    lab.there.lead(lab.kubeconfig)
    for words in OF_VOLUMES:
        said = lab.refused(*words)
        assert account["words"] in said.err
        assert f"context lab of {lab.kubeconfig}" in said.err
        assert "`orch volume delete data --forget`" in said.err
    lab.refused("gc", "--yes")

    lab.here.lead(lab.kubeconfig)
    assert "no changes" in lab.done("preview", "data.yml").out
    lab.here.objects.pop(claim)
    assert lab.done("refresh", "data.yml").out.count("(gone)") == 1  # its own cluster is believed
    lab.done("up", "data.yml", "--yes")
    assert lab.here.made == [claim]
    lab.done("volume", "delete", "data", "--yes")
    assert (lab.here.made, lab.there.changes) == ([], [])


def test_a_volume_of_an_earlier_version_records_its_cluster_at_its_next_up(lab: Lab) -> None:
    lab.done("up", "data.yml", "--yes")
    lab.untagged("volume.data")
    lab.there.lead(lab.kubeconfig)
    for words in OF_VOLUMES[2:]:
        said = lab.refused(*words, code="ORCH349")
        assert "`orch volume delete data --forget`" in said.err
    for words, code in zip(OF_VOLUMES[:2], (10, 0), strict=True):
        said = lab.orch(*words)
        assert (said.code, "is gone at once" in said.err) == (code, True), said.err

    lab.here.lead(lab.kubeconfig)
    assert "no changes" in lab.done("up", "data.yml", "--yes").out
    assert lab.account("volume.data") is not None
    lab.there.lead(lab.kubeconfig)
    for words in OF_VOLUMES:
        lab.refused(*words)


def test_a_volume_goes_to_no_other_cluster_by_another_kubeconfig(lab: Lab) -> None:
    lab.done("up", "data.yml", "--yes")
    other = lab.kubeconfig.with_name("other.yml")
    lab.there.lead(other)
    lab.folder.write("orch.yml", PROJECT.replace("kube.yml", "other.yml"))
    for tagged in (True, False):
        for words in (("preview", "data.yml"), ("up", "data.yml", "--yes")):
            said = lab.refused(*words)
            assert f"context lab of {other}" in said.err
        if tagged:
            lab.untagged("volume.data")


def test_a_volume_on_a_cluster_that_is_gone_for_good_is_dropped_by_the_users_word(lab: Lab) -> None:
    lab.done("up", "data.yml", "--yes")
    # A copy of the cluster: the claim is there, with all its labels.
    lab.there.objects.update(lab.here.objects)
    lab.there.lead(lab.kubeconfig)
    lab.refused("volume", "delete", "data", "--yes")
    said = lab.done("volume", "delete", "data", "--yes", "--forget")
    assert "nothing was deleted" in said.err
    assert (lab.there.changes, lab.there.made) == ([], lab.here.made)
    assert "data" not in lab.done("volume", "list").out


def test_a_fleet_without_an_identity_records_its_cluster_at_its_next_up(lab: Lab) -> None:
    lab.done("up", "lab.yml", "--yes")
    lab.without_identity("lab")
    made = lab.here.made
    assert len(made) == 1
    lab.there.lead(lab.kubeconfig)
    for words in OF_FLEETS[2:]:
        said = lab.refused(*words, code="ORCH349")
        assert "the account of the stack is not recorded" in said.err

    lab.here.lead(lab.kubeconfig)
    assert "no changes" in lab.done("up", "lab.yml", "--yes").out
    assert lab.here.made == made
    account = lab.account("lab")
    assert account is not None
    assert account["id"].startswith("uid-here+server/")
    assert "as registered" in lab.done("drift", "lab").out
    lab.there.lead(lab.kubeconfig)
    for words in OF_FLEETS:
        said = lab.refused(*words)
        assert "`orch down lab --force`" in said.err
    # A copy of the cluster: what the fleet had is there, with all its labels.
    lab.there.objects.update(lab.here.objects)
    said = lab.done("down", "lab", "--yes", "--force")
    assert "nothing was deleted" in said.err
    assert (lab.here.made, lab.there.made, lab.there.changes) == (made, made, [])
    assert "lab" not in lab.done("fleet", "list").out


def test_a_user_who_may_not_read_the_uid_is_compared_by_address_and_authority(lab: Lab) -> None:
    lab.here.uid = None
    lab.done("up", "data.yml", "--yes")
    account = lab.account("volume.data")
    assert account is not None
    assert account["id"].startswith("server/")
    lab.here.uid = "uid-here"  # somebody else may
    lab.done("up", "data.yml", "--yes")
    assert lab.account("volume.data") == {**account, "id": f"uid-here+{account['id']}"}
    lab.there.lead(lab.kubeconfig)
    lab.there.uid = None
    lab.refused("volume", "delete", "data", "--yes")
    # The same cluster, at another address.
    lab.there.uid = "uid-here"
    lab.there.objects.update(lab.here.objects)
    assert "as registered" in lab.done("drift", "data.yml").out
