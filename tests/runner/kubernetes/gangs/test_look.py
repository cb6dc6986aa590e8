"""What the documents of a gang come to: its state, who is to blame, and why it waits, in plain sentences."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch.runner.kubernetes.gangs.documents import GangFacts
from orch.runner.kubernetes.gangs.look import GangLook, due_back, look_of, pause_before_retry, refused
from orch.runner.kubernetes.gangs.reasons import Taken, event_of_removal, taken_because

Doc = dict[str, Any]
MOMENT = "2026-11-27T01:00:00Z"
START = datetime(2026, 11, 27, 1, tzinfo=timezone.utc)
NAME = "orch-train-3b2e08"


def job(pods: int = 4, *, suspend: bool = False, deleted: bool = False, **conditions: Doc) -> Doc:
    """A Job; `conditions`: type -> what it says beside being true."""
    metadata: Doc = {"name": NAME, "uid": "j1", **({"deletionTimestamp": MOMENT} if deleted else {})}
    rows = [{"type": kind, "status": "True", **words} for kind, words in conditions.items()]
    return {
        "metadata": metadata,
        "spec": {"completions": pods, "suspend": suspend},
        "status": {"conditions": rows},
    }


def pod(
    index: int, *, node: str | None = None, state: Doc | None = None, made: str = MOMENT, **words: Any
) -> Doc:
    """A pod. `state` is that of its container; `conditions`, `phase`, `reason`, `message`: of its status."""
    conditions: list[Doc] = list(words.pop("conditions", ()))
    if node is not None:
        conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": made})
    metadata: Doc = {
        "name": f"{NAME}-{index}-x",
        "uid": f"p{index}-{made}",
        "creationTimestamp": made,
        "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if words.pop("deleted", False):
        metadata["deletionTimestamp"] = MOMENT
    phase = words.pop("phase", "Running" if state and "running" in state else "Pending")
    status: Doc = {"phase": phase, "conditions": conditions, **words}
    if state is not None:
        status["containerStatuses"] = [{"name": "job", "image": "example.com/x:1", "state": state}]
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


RUNS: Doc = {"running": {"startedAt": MOMENT}}


def runs(index: int) -> Doc:
    return pod(index, node=f"gpu-{index}", state=RUNS, podIP=f"10.0.0.{index}")


def unschedulable(index: int, text: str) -> Doc:
    row = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
    return pod(index, conditions=[row])


def ended(index: int, code: int, at: str = MOMENT, **more: Any) -> Doc:
    state = {"terminated": {"exitCode": code, "finishedAt": at, **more.pop("terminated", {})}}
    return pod(index, node=f"gpu-{index}", state=state, phase="Failed" if code else "Succeeded", **more)


def disrupted(index: int, why: str, **more: Any) -> Doc:
    row = {"type": "DisruptionTarget", "status": "True", "reason": why, "message": "of the server"}
    return pod(index, node=f"gpu-{index}", conditions=[row], **more)


def event(uid: str, reason: str, message: str, at: str = MOMENT) -> Doc:
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": message, "lastTimestamp": at}


def workload(*, active: bool = True, checks: tuple[Doc, ...] = (), **conditions: Doc) -> Doc:
    rows = [{"type": kind, "status": "False", **words} for kind, words in conditions.items()]
    return {"spec": {"active": active}, "status": {"conditions": rows, "admissionChecks": list(checks)}}


def look(document: Doc | None, *pods: Doc, **words: Any) -> GangLook:
    return look_of(GangFacts(NAME, document, pods, **words))


def test_a_gang_runs_when_all_its_pods_do() -> None:
    found = look(job(2), runs(1), runs(0))
    assert (found.state, found.reasons) == ("running", ())
    assert [(each.index, each.node, each.ip) for each in found.pods] == [
        (0, "gpu-0", "10.0.0.0"),
        (1, "gpu-1", "10.0.0.1"),
    ]
    assert look(job(2), runs(0), ended(1, 0)).state == "running"
    assert look(job(2, Complete={}), ended(0, 0), ended(1, 0)).state == "ended"


def test_what_is_gone_says_what_is_left() -> None:
    assert look(None).state == "gone"
    leaving = look(job(deleted=True), runs(0))
    assert leaving.state == "gone"
    assert leaving.reasons == ("1 of its pods are being removed",)
    assert leaving.uid == "j1"


def test_pods_without_a_node_say_what_the_scheduler_says_without_its_search_for_victims() -> None:
    text = (
        "0/8 nodes are available: 5 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/"
        "8 nodes are available: 8 No preemption victims found for incoming pod."
    )
    found = look(job(4), runs(0), runs(1), runs(3), unschedulable(2, text))
    assert found.state == "starting"
    assert found.reasons == (
        "3 of 4 pods run",
        "pod 2: 0/8 nodes are available: 5 Insufficient nvidia.com/gpu",
    )
    none = look(job(4), *(unschedulable(index, text) for index in (0, 1, 2, 3)))
    assert none.state == "waiting"
    assert none.reasons == ("pods 0-3: 0/8 nodes are available: 5 Insufficient nvidia.com/gpu",)


def test_an_image_that_cannot_be_pulled_is_told_with_its_cause() -> None:
    waiting = {
        "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "example.com/x:1"'}
    }
    document = pod(1, node="gpu-1", state=waiting)
    told = event(document["metadata"]["uid"], "Failed", "manifest unknown")
    found = look(job(2), runs(0), document, events=[told])
    assert found.reasons[1] == "pod 1: image example.com/x:1 cannot be pulled: manifest unknown"
    bare = look(job(2), runs(0), document)
    assert "image example.com/x:1 cannot be pulled: Back-off pulling image" in bare.reasons[1]
    failed = {"waiting": {"reason": "ErrImagePull", "message": "denied"}}
    assert look(job(1), pod(0, node="a", state=failed)).reasons[-1] == (
        "pod 0: image example.com/x:1 cannot be pulled: denied"
    )


def test_a_container_that_does_not_start_and_a_volume_that_does_not_come_are_told() -> None:
    odd = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}
    assert look(job(1), pod(0, node="a", state=odd)).reasons[-1] == (
        'pod 0: its container does not start [CreateContainerConfigError]: secret "x" not found'
    )
    document = pod(0, node="a", state={"waiting": {"reason": "ContainerCreating"}})
    uid = document["metadata"]["uid"]
    told = [
        event(uid, "FailedMount", "old", "2026-11-27T00:59:00Z"),
        event(uid, "FailedMount", "claim is not bound"),
    ]
    assert look(job(1), document, events=told).reasons[-1] == "pod 0: on a: claim is not bound"
    assert look(job(1), document).reasons == ("1 of 1 pods have a node",)


ABSENT = (
    "cannot find a network-attachment-definition (hostdev-net) in namespace (ml): "
    'network-attachment-definitions.k8s.cni.cncf.io "hostdev-net" not found'
)
FOREIGN = (
    "GetNetworkDelegates: namespace isolation enabled, annotation violates permission, pod is in namespace "
    "ml but refers to target namespace fabric"
)
SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "
    f'"{"0f" * 32}": plugin type="multus-shim" name="multus-cni-network" failed (add): CmdAdd (shim): CNI '
    "request failed with status 400: 'ContainerID:\""
    + "0f"
    * 32
    + '" with error: [ml/orch-train-3b2e08-0-x]: '
    "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: "
    "GetNetworkDelegates: failed getting the delegate: getKubernetesDelegate: "
)


@pytest.mark.parametrize(
    ("reason", "message", "text"),
    [
        ("NoNetworkFound", ABSENT, "Multus finds no NetworkAttachmentDefinition hostdev-net in namespace ml"),
        (
            "FailedCreatePodSandBox",
            SANDBOX + ABSENT,
            "Multus finds no NetworkAttachmentDefinition hostdev-net in namespace ml",
        ),
        (
            "FailedCreatePodSandBox",
            SANDBOX + FOREIGN,
            "Multus lets it join no networks of namespace fabric (namespaceIsolation)",
        ),
        (
            "FailedCreatePodSandBox",
            'failed to setup network for sandbox "a": no IPs available',
            'failed to setup network for sandbox "a": no IPs available',
        ),
    ],
)
def test_a_network_that_a_pod_cannot_join_is_named(reason: str, message: str, text: str) -> None:
    document = pod(0, node="a", state={"waiting": {"reason": "ContainerCreating"}})
    told = [event(document["metadata"]["uid"], reason, message)]
    seen = look(job(1), document, events=told)
    assert seen.state == "starting"
    assert seen.reasons[-1] == f"pod 0: on a: {text}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            'Error creating: pods "orch-a-0-x" is forbidden: exceeded quota: gpus, requested: '
            "requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8",
            "its pods cannot be created: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: "
            "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8",
        ),
        (
            'Error creating: admission webhook "images.example.com" denied the request: not ours',
            'its pods cannot be created: admission webhook "images.example.com" denied the request: not ours',
        ),
        (
            'Error creating: pods "x" is forbidden: violates PodSecurity "baseline:latest": non-default '
            'capabilities (container "job" must not include "IPC_LOCK" in securityContext.capabilities.add)',
            'its pods cannot be created: violates PodSecurity "baseline:latest": non-default capabilities '
            '(container "job" must not include "IPC_LOCK" in securityContext.capabilities.add)',
        ),
    ],
)
def test_pods_that_cannot_be_created_say_who_refuses_them(message: str, text: str) -> None:
    told = [
        event("j1", "FailedCreate", "older", "2026-11-27T00:00:00Z"),
        event("j1", "FailedCreate", message),
    ]
    found = look(job(2), events=[*told, event("other", "FailedCreate", "of another")])
    assert found.state == "waiting"
    assert found.reasons == (text,)


def test_kueue_is_told_by_condition_reason_and_text() -> None:
    text = (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor "
        "h100, 32 more needed"
    )

    def reasons(row: Doc | None) -> tuple[str, ...]:
        found = look(job(suspend=True), kueue=True, workload=row)
        assert found.state == "waiting"
        return found.reasons

    plain = "Kueue: insufficient unused quota for nvidia.com/gpu in flavor h100, 32 more needed"
    assert reasons(workload(QuotaReserved={"reason": "Pending", "message": text})) == (plain,)
    assert reasons(workload(QuotaReserved={"reason": "ExceedsMaxQuota", "message": text})) == (
        f"{plain} [ExceedsMaxQuota]",
    )
    assert reasons(workload(QuotaReserved={"reason": "Suspended"})) == ("Kueue: waits for quota [Suspended]",)
    assert reasons(None) == ("Kueue: has not taken the job into its queue yet",)
    check = {"name": "dws", "state": "Pending", "message": "capacity is on its way"}
    assert reasons(workload(checks=(check,), QuotaReserved={"status": "True"})) == (
        "Kueue: waits for the admission check dws: capacity is on its way",
    )
    assert reasons(
        workload(Evicted={"status": "True", "reason": "Preempted", "message": "for b"}, QuotaReserved={})
    ) == ("Kueue: evicted, and waits again: for b [Preempted]",)
    assert reasons(workload(Admitted={"status": "True"}, QuotaReserved={"status": "True"})) == (
        "Kueue: admitted, the pods are being created",
    )


def test_a_suspended_job_without_a_queue_says_whose_turn_it_is() -> None:
    begun = look(job(suspend=True))
    assert (begun.state, begun.reasons) == (
        "waiting",
        ("it is not whole yet: who asked for it has not finished",),
    )
    document = job(suspend=True)
    document["metadata"]["annotations"] = {"orch.dev/released": "true"}
    assert "somebody has suspended its Job" in look(document).reasons[0]


def test_a_deactivated_workload_never_goes_on() -> None:
    evicted = {
        "status": "True",
        "reason": "DeactivatedDueToMaximumExecutionTimeExceeded",
        "message": "too long",
    }
    found = look(job(suspend=True), kueue=True, workload=workload(active=False, Evicted=evicted))
    assert (found.state, found.cause) == ("failed", "application")
    assert found.reasons == ("Kueue: deactivated: too long [DeactivatedDueToMaximumExecutionTimeExceeded]",)
    other = look(job(suspend=True), kueue=True, workload=workload(active=False))
    assert (other.state, other.cause) == ("failed", "infrastructure")


def test_a_gang_that_kueue_takes_back_waits_and_has_not_failed() -> None:
    found = look(job(2, suspend=True), ended(0, 137, deleted=True), runs(1), kueue=True, workload=workload())
    assert found.state == "waiting"


def test_a_pod_group_says_why_it_has_no_place() -> None:
    row = {"type": "PodGroupScheduled", "status": "False", "reason": "Unschedulable", "message": "2 of 6 fit"}
    found = look(job(2), pod(0), pod(1), pod_group={"status": {"conditions": [row]}})
    assert found.reasons == ("the gang has no place yet: 2 of 6 fit", "pods 0-1: has no node yet")


@pytest.mark.parametrize(
    ("document", "text", "cause"),
    [
        (ended(1, 7), "pod 1: its first process ended with exit code 7", "application"),
        (
            ended(1, 137, terminated={"reason": "OOMKilled"}),
            "pod 1: its container was killed because it had no memory left (gpu-1) [OOMKilled]",
            "application",
        ),
        (
            disrupted(1, "TerminationByKubelet", phase="Failed", reason="Evicted", message="low on memory."),
            "pod 1: its node evicted it (gpu-1) [TerminationByKubelet]: low on memory",
            "infrastructure",
        ),
        (
            disrupted(1, "DeletionByTaintManager", deleted=True),
            "pod 1: its node is lost, or no longer takes it (gpu-1) [DeletionByTaintManager]",
            "infrastructure",
        ),
        (
            disrupted(1, "PreemptionByScheduler", deleted=True),
            "pod 1: pods of a higher priority took its place (gpu-1) [PreemptionByScheduler]",
            "infrastructure",
        ),
        (
            disrupted(1, "Novel", deleted=True),
            "pod 1: the cluster took it away (gpu-1) [Novel]: of the server",
            "infrastructure",
        ),
        (
            pod(1, node="gpu-1", phase="Failed", reason="UnexpectedAdmissionError", message="no rdma/ib"),
            "pod 1: its node refused or ended it (gpu-1) [UnexpectedAdmissionError]: no rdma/ib",
            "infrastructure",
        ),
        (
            pod(1, node="gpu-1", phase="Failed", reason="DeadlineExceeded", message="x"),
            "pod 1: it ran longer than it may [DeadlineExceeded]",
            "application",
        ),
    ],
)
def test_a_pod_that_failed_ends_all_and_says_whose_fault_it_was(document: Doc, text: str, cause: str) -> None:
    found = look(job(2), runs(0), document)
    assert (found.state, found.cause, found.reasons) == ("failed", cause, (text,))


def test_the_first_that_failed_is_told_and_not_those_that_were_ended_for_it() -> None:
    found = look(
        job(3, Failed={"reason": "PodFailurePolicy"}),
        ended(0, 137, "2026-11-27T01:00:09Z"),
        ended(1, 3, "2026-11-27T01:00:01Z"),
        ended(2, 143, "2026-11-27T01:00:00Z", deleted=True),
    )
    assert found.reasons == ("pod 1: its first process ended with exit code 3",)


def test_a_job_that_failed_without_a_pod_left_says_what_its_controller_says() -> None:
    text = "Pod ml/x has condition DisruptionTarget matching FailJob rule at index 0"
    found = look(job(2, FailureTarget={"reason": "PodFailurePolicy", "message": text}))
    assert (found.state, found.cause) == ("failed", "infrastructure")
    assert found.reasons == (f"PodFailurePolicy: {text}",)
    other = look(job(2, Failed={"reason": "DeadlineExceeded", "message": "Job was active too long"}))
    assert other.cause == "application"


def test_a_pod_that_somebody_removes_is_not_its_programs_fault() -> None:
    leaving = look(job(2), runs(0), ended(1, 143, deleted=True))
    assert (leaving.state, leaving.cause) == ("failed", "infrastructure")
    assert leaving.reasons == ("pod 1: somebody removes it (gpu-1)",)
    text = "Container job for pod ml/x failed with exit code 143 matching FailJob rule at index 1"
    gone = look(job(2, Failed={"reason": "PodFailurePolicy", "message": text}), runs(0))
    assert gone.cause == "infrastructure"
    own = look(job(2, Failed={"reason": "PodFailurePolicy", "message": text.replace("143", "1")}), runs(0))
    assert own.cause == "application"


def test_a_pod_that_ended_well_because_it_was_taken_away_is_missed() -> None:
    document = job(3)
    document["status"]["succeeded"] = 1
    found = look(document, runs(0), runs(2))
    assert (found.state, found.cause) == ("failed", "infrastructure")
    assert found.reasons == ("1 of 3 pods ended and were removed",)
    assert look(document, runs(0), ended(1, 0), runs(2)).state == "running"


def test_of_two_pods_of_one_index_the_one_that_stays_counts() -> None:
    old = pod(0, node="gpu-9", state=RUNS, made="2026-11-27T01:00:05Z", deleted=True)
    new = pod(0, node="gpu-0", state=RUNS, made="2026-11-27T01:00:01Z")
    found = look(job(1), old, new)
    assert [each.node for each in found.pods] == ["gpu-0"]
    assert found.state == "running"


def test_a_gang_that_holds_nodes_while_others_have_none_is_due_back_after_its_limit() -> None:
    part = look(job(3), runs(0), pod(1, node="gpu-1", made="2026-11-27T01:02:00Z"), unschedulable(2, "0/8"))
    assert part.partial_since == START
    assert not due_back(part, START + timedelta(seconds=299), 300)
    assert due_back(part, START + timedelta(seconds=300), 300)
    pulls = look(job(2), runs(0), pod(1, node="gpu-1"))
    assert not due_back(pulls, START + timedelta(hours=9), 300)
    nobody = look(job(2), unschedulable(0, "x"), unschedulable(1, "x"))
    assert not due_back(nobody, START + timedelta(hours=9), 300)
    uncreated = look(job(2), runs(0))  # a quota that lets one pod in
    assert due_back(uncreated, START + timedelta(seconds=301), 300)
    assert not due_back(look(job(1), runs(0)), START + timedelta(hours=9), 300)


def test_pods_that_have_their_nodes_and_will_not_run_are_not_waited_for() -> None:
    def after(state: Doc, seconds: float) -> bool:
        return refused(
            look(job(2), runs(0), pod(1, node="gpu-1", state=state)), START + timedelta(seconds=seconds)
        )

    wrong = {"waiting": {"reason": "ImagePullBackOff"}}
    assert not after(wrong, 59)
    assert after(wrong, 61)
    pulls = {"waiting": {"reason": "ContainerCreating"}}
    assert not after(pulls, 1799)
    assert after(pulls, 1801)
    assert not refused(look(job(1), runs(0)), START + timedelta(hours=9))
    assert not refused(look(job(2), runs(0), unschedulable(1, "0/8")), START + timedelta(hours=9))


def test_a_gang_is_whole_once_it_has_been_let_go() -> None:
    document = job(2)
    assert not look(document, runs(0), runs(1)).whole
    document["metadata"]["annotations"] = {"orch.dev/released": "true"}
    assert look(document, runs(0), runs(1)).whole


@given(st.integers(0, 1000), st.floats(0, 1))
def test_two_gangs_do_not_ask_again_at_the_same_moment_nor_much_later(tries: int, chance: float) -> None:
    pause = pause_before_retry(tries, chance)
    assert 5 <= pause <= 450
    assert pause_before_retry(tries, 1.0) > pause_before_retry(tries, 0.0)


def test_many_reasons_and_long_texts_are_cut() -> None:
    found = look(job(20), *(unschedulable(index, f"reason {index} " + "x" * 900) for index in range(20)))
    assert len(found.reasons) == 7
    assert found.reasons[-1] == "and 14 reasons more"
    assert max(map(len, found.reasons)) < 450


@given(st.text(max_size=300))
def test_a_strangers_text_is_one_line(text: str) -> None:
    found = look(job(1), unschedulable(0, text))
    assert not any("\n" in reason or "\r" in reason for reason in found.reasons)


def disrupted(reason: str) -> list[Doc]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


EVICTED = pod(
    1,
    node="n1",
    phase="Failed",
    reason="Evicted",
    message="The node was low on resource: memory.",
    conditions=disrupted("TerminationByKubelet"),
)
DRAINED = pod(0, node="n0", state=RUNS, deleted=True, conditions=disrupted("EvictionByEvictionAPI"))


@pytest.mark.parametrize(
    ("of", "pods", "taken"),
    [
        (
            job(2, FailureTarget={}),
            [pod(0, node="n0", state=RUNS, deleted=True), EVICTED],
            Taken(
                1,
                "its node evicted it (n1) [TerminationByKubelet]: The node was low on resource: memory",
            ),
        ),
        (
            job(2),
            [DRAINED],
            Taken(0, "it was evicted, as when a node is drained (n0) [EvictionByEvictionAPI]"),
        ),
        (job(2), [pod(0, node="n0", state=RUNS, deleted=True)], Taken(0, "somebody removes it (n0)")),
        # Its controller removes the others of a Job that has failed, or that its queue has stopped.
        (job(2, FailureTarget={}), [pod(0, node="n0", state=RUNS, deleted=True)], None),
        (job(2, suspend=True), [pod(0, node="n0", state=RUNS, deleted=True)], None),
        (job(2), [pod(0, node="n0", state=RUNS)], None),
    ],
    ids=["evicted", "drained", "deleted", "with-others", "suspended", "not-at-all"],
)
def test_why_pods_are_taken_away(of: Doc, pods: list[Doc], taken: Taken | None) -> None:
    assert taken_because(GangFacts(NAME, of, pods)) == taken


def test_the_queue_of_kueue_says_why_it_takes_a_gang_back() -> None:
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "for another workload"}
    workload = {"spec": {}, "status": {"conditions": [evicted]}}
    facts = GangFacts(NAME, job(2, suspend=True), workload=workload)
    found = taken_because(facts)
    assert found == Taken(None, "Kueue: evicted, and waits again: for another workload [Preempted]")


def test_events_of_a_pod_that_is_gone_say_why() -> None:
    rows = [
        {"reason": "Scheduled", "message": "on n1", "lastTimestamp": "2026-11-27T02:00:00Z"},
        {"reason": "Evicted", "message": "low on memory.", "lastTimestamp": "2026-11-27T01:00:00Z"},
    ]
    assert event_of_removal(rows) == "it was taken away [Evicted]: low on memory"
    assert event_of_removal(rows[:1]) is None


def failed_creation(text: str, began: str = MOMENT, last: str = MOMENT) -> Doc:
    about = {"uid": "j1"}
    row = {"reason": "FailedCreate", "message": f"Error creating: {text}", "involvedObject": about}
    return {**row, "firstTimestamp": began, "lastTimestamp": last}


def test_pods_that_are_refused_for_what_they_are_end_their_run_after_a_minute() -> None:
    text = 'Pod "orch-train-0-x" is invalid: spec.containers[0].resources.requests: Invalid value: "64"'
    look = look_of(GangFacts(NAME, job(2), events=[failed_creation(text)]))
    assert look.reasons == (
        'its pods cannot be created: invalid: spec.containers[0].resources.requests: Invalid value: "64"',
    )
    assert not refused(look, START + timedelta(seconds=59))
    assert refused(look, START + timedelta(seconds=60))


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ('pods "x" is forbidden: violates PodSecurity "baseline:latest": privileged', True),
        ('pods "x" is forbidden: maximum cpu usage per Container is 4, but limit is 64', True),
        ('pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1', False),
    ],
)
def test_what_passes_by_itself_is_waited_for(text: str, ends: bool) -> None:
    look = look_of(GangFacts(NAME, job(2), events=[failed_creation(text)]))
    assert refused(look, START + timedelta(hours=1)) is ends
    later = failed_creation("exceeded quota: team", last="2026-11-27T01:30:00Z")
    look = look_of(GangFacts(NAME, job(2), events=[failed_creation(text), later]))
    assert not refused(look, START + timedelta(hours=1))
