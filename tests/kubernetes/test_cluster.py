"""The rehearsed cluster: pods that run, fail, talk, and are lost, on the real control plane."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from kit.kubernetes.kubelab import INDEX, Cluster, indexed

from orch.rehearsal.kubernetes.api import ApiError

pytestmark = pytest.mark.kubernetes


def test_pods_of_a_job_find_each_other_and_end_with_their_codes(cluster: Cluster) -> None:
    space = cluster.namespace("talk")
    cluster.job(
        space,
        "train",
        "for i in 0 1 2 3; do until getent hosts train-$i.train; do sleep 0.1; done; done;"
        ' echo "rank $JOB_COMPLETION_INDEX on $(hostname)"; exit $((JOB_COMPLETION_INDEX == 2 ? 7 : 0))',
        pods=4,
    )
    cluster.until(lambda: cluster.ended(space, "train"))
    # Those that still ran when the job failed are removed.
    pods = {int(pod["metadata"]["labels"][INDEX]): pod for pod in cluster.pods(space, "train")}
    failed = pods[2]
    assert cluster.ended(space, "train") == "Failed"
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == len(pods)
    assert "rank 2 on train-2" in cluster.log(failed)


def test_a_pod_has_its_secrets_files_and_memory(cluster: Cluster) -> None:
    space = cluster.namespace("files")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key"},
        "data": {"k": b64encode(b"abc").decode()},
    }
    cluster.api.create(f"/api/v1/namespaces/{space}/secrets", secret)
    cluster.job(
        space,
        "files",
        "cat /keys/r; df -h /dev/shm | tail -1; echo $K $RANK; touch /data/done",
        gpus=1,
        volumes=[
            {
                "name": "keys",
                "projected": {"sources": [{"secret": {"name": "key", "items": [{"key": "k", "path": "r"}]}}]},
            },
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ],
        container={
            "volumeMounts": [
                {"name": "keys", "mountPath": "/keys", "readOnly": True},
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "data", "mountPath": "/data"},
            ],
            "env": [
                {"name": "K", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
                {
                    "name": "RANK",
                    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}},
                },
            ],
        },
    )
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.api.create(f"/api/v1/namespaces/{space}/persistentvolumeclaims", claim)
    assert cluster.until(lambda: cluster.ended(space, "files")) == "Complete"
    text = cluster.log(cluster.pods(space, "files")[0])
    assert text.startswith("abc")
    assert "64M" in text
    assert "abc 0" in text


def test_an_image_that_is_missing_is_told_and_goes_with_its_pod(cluster: Cluster) -> None:
    space = cluster.namespace("image")
    cluster.job(space, "lost", "true", gpus=0, container={"image": "localhost:1/none:1"})

    def reasons() -> set[str]:
        rows = [pod["status"].get("containerStatuses", []) for pod in cluster.pods(space, "lost")]
        return {row["state"].get("waiting", {}).get("reason", "") for each in rows for row in each}

    cluster.until(lambda: reasons() & {"ErrImagePull", "ImagePullBackOff"})
    cluster.api.delete(f"/apis/batch/v1/namespaces/{space}/jobs/lost", propagationPolicy="Background")
    cluster.until(lambda: not cluster.pods(space, "lost"))


def test_an_evicted_pod_and_one_whose_node_is_lost_are_disrupted(cluster: Cluster) -> None:
    space = cluster.namespace("lost")
    short = [
        {
            "key": f"node.kubernetes.io/{each}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 1,
        }
        for each in ("unreachable", "not-ready")
    ]
    cluster.job(space, "long", "sleep 600", pods=2, tolerations=short)
    cluster.until(lambda: [pod["status"]["phase"] for pod in cluster.pods(space, "long")] == ["Running"] * 2)
    first, second = cluster.pods(space, "long")
    cluster.cluster.ask("evict", namespace=space, pod=first["metadata"]["name"], message="low on memory")
    failed = cluster.until(
        lambda: [pod for pod in cluster.pods(space, "long") if pod["status"].get("reason") == "Evicted"]
    )
    assert any(row["type"] == "DisruptionTarget" for row in failed[0]["status"]["conditions"])
    cluster.api.delete(f"/apis/batch/v1/namespaces/{space}/jobs/long", propagationPolicy="Background")
    cluster.until(lambda: not cluster.pods(space, "long"))
    node = second["spec"]["nodeName"]
    cluster.job(space, "there", "sleep 600", nodeSelector={"kubernetes.io/hostname": node}, tolerations=short)
    cluster.until(lambda: [pod["status"]["phase"] for pod in cluster.pods(space, "there")] == ["Running"])
    cluster.cluster.ask("lose", node=node)
    try:
        gone = cluster.until(
            lambda: [pod for pod in cluster.pods(space, "there") if pod["metadata"].get("deletionTimestamp")]
        )
        reasons = {
            row.get("reason") for row in gone[0]["status"]["conditions"] if row["type"] == "DisruptionTarget"
        }
        assert reasons == {"DeletionByTaintManager"}
    finally:
        cluster.cluster.ask("find_again", node=node)
    cluster.until(lambda: not cluster.pods(space, "there") or cluster.ended(space, "there"))
    cluster.api.remove(f"/apis/batch/v1/namespaces/{space}/jobs/there", propagationPolicy="Background")


def test_jobsets_alone_are_no_gang_and_names_must_fit(cluster: Cluster) -> None:
    space = cluster.namespace("sets")
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets"
    for name in ("a", "b"):
        cluster.api.create(path, jobset(name, "sleep 600", 6))

    def running(name: str) -> int:
        pods = cluster.pods(space, name, "jobset.sigs.k8s.io/jobset-name")
        return sum(1 for pod in pods if pod["status"]["phase"] == "Running")

    cluster.until(lambda: sorted((running("a"), running("b"))) == [2, 6])
    with pytest.raises(ApiError, match="exceed 63"):
        cluster.api.create(path, jobset("x" * 60, "true", 1))
    for name in ("a", "b"):
        cluster.api.delete(f"{path}/{name}", propagationPolicy="Foreground")
    cluster.until(lambda: not cluster.pods(space))


def test_a_failed_pod_restarts_a_jobset_as_its_policy_says(cluster: Cluster) -> None:
    space = cluster.namespace("restarts")
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets"
    document = jobset("train", "exit 3", 2)
    document["spec"]["failurePolicy"] = {"maxRestarts": 1, "restartStrategy": "BlockingRecreate"}
    cluster.api.create(path, document)

    def failed() -> dict[str, Any] | None:
        status = cluster.api.get(f"{path}/train").get("status", {})
        return status if status.get("terminalState") == "Failed" else None

    status = cluster.until(failed)
    assert status["restarts"] == 1
    assert [row["reason"] for row in status["conditions"] if row["type"] == "Failed"] == [
        "ReachedMaxRestarts"
    ]
    cluster.api.delete(f"{path}/train", propagationPolicy="Foreground")


def test_a_queue_lets_one_gang_of_six_in_and_the_other_waits_whole(cluster: Cluster) -> None:
    space = cluster.namespace("queue")
    queue(cluster, space, gpus=64)
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets"
    note = {"kueue.x-k8s.io/podset-preferred-topology": "topology.kubernetes.io/block"}
    for name in ("a", "b"):
        document = jobset(name, "sleep 600", 6, annotations=note)
        document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "main"}
        document["spec"]["suspend"] = True
        cluster.api.create(path, document)

    def phases(name: str) -> list[str]:
        return [pod["status"]["phase"] for pod in cluster.pods(space, name, "jobset.sigs.k8s.io/jobset-name")]

    cluster.until(lambda: phases("a") == ["Running"] * 6)

    def waiting() -> list[str]:
        rows = cluster.api.items(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{space}/workloads")
        return [
            row["message"]
            for each in rows
            for row in each.get("status", {}).get("conditions", ())
            if row["type"] == "QuotaReserved" and row["status"] == "False"
        ]

    assert "insufficient unused quota for nvidia.com/gpu in flavor h100" in cluster.until(waiting)[0]
    assert phases("b") == []
    cluster.api.delete(f"{path}/a", propagationPolicy="Foreground")
    cluster.until(lambda: phases("b") == ["Running"] * 6)
    cluster.api.delete(f"{path}/b", propagationPolicy="Foreground")
    cluster.until(lambda: not cluster.pods(space))


def test_the_schedulers_own_gang_is_one(cluster: Cluster) -> None:
    space = cluster.namespace("podgroup")
    for name in ("a", "b"):
        group = {
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 6}}},
        }
        cluster.api.create(f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{space}/podgroups", group)
        cluster.job(space, name, "sleep 600", pods=6, schedulingGroup={"podGroupName": name})

    def running() -> list[int]:
        return sorted(
            sum(1 for pod in cluster.pods(space, name) if pod["status"]["phase"] == "Running")
            for name in ("a", "b")
        )

    cluster.until(lambda: running() == [0, 6])
    for name in ("a", "b"):
        cluster.api.delete(f"/apis/batch/v1/namespaces/{space}/jobs/{name}", propagationPolicy="Background")
    cluster.until(lambda: not cluster.pods(space))


def jobset(name: str, command: str, pods: int, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": indexed(command, pods, **spec)}}]},
    }


def queue(cluster: Cluster, space: str, gpus: int) -> None:
    api = "/apis/kueue.x-k8s.io/v1beta2"
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    levels = [{"nodeLabel": "topology.kubernetes.io/block"}, {"nodeLabel": "kubernetes.io/hostname"}]
    documents: list[tuple[str, dict[str, Any]]] = [
        (
            "topologies",
            {**head, "kind": "Topology", "metadata": {"name": "blocks"}, "spec": {"levels": levels}},
        ),
        (
            "resourceflavors",
            {
                **head,
                "kind": "ResourceFlavor",
                "metadata": {"name": "h100"},
                "spec": {
                    "nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
                    "topologyName": "blocks",
                },
            },
        ),
        (
            "clusterqueues",
            {
                **head,
                "kind": "ClusterQueue",
                "metadata": {"name": "main"},
                "spec": {
                    "namespaceSelector": {},
                    "resourceGroups": [
                        {
                            "coveredResources": ["nvidia.com/gpu"],
                            "flavors": [
                                {
                                    "name": "h100",
                                    "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}],
                                }
                            ],
                        }
                    ],
                },
            },
        ),
        (
            f"namespaces/{space}/localqueues",
            {**head, "kind": "LocalQueue", "metadata": {"name": "main"}, "spec": {"clusterQueue": "main"}},
        ),
    ]
    for plural, document in documents:
        cluster.api.create(f"{api}/{plural}", document)
