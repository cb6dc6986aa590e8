"""Jobs on parts of a server: which devices they see, how much of it they have, their variables."""

from __future__ import annotations

from kit.nodes.blocklab import begin, end_all, fleet, left_on, node, run
from kit.nodes.labserver import Server

from orch.runner.node.status import node_statuses
from orch.runner.runs.lifecycle import RunnerContext

SEEN = 'echo "sees $(nvidia-smi --query-gpu=uuid --format=csv,noheader | tr "\\n" " ")has $ORCH_GPUS_NUM"'


def uuids(server: Server) -> list[str]:
    return server.run("cut -d'|' -f6 /etc/accelerators/nvidia").split()


def test_a_job_in_block_3_sees_its_gpu_and_no_other(place: RunnerContext, gpu1: Server, ended: None):
    on = fleet(node(gpu1, blocks=8))
    for name in ("one", "two", "three"):
        begin(place, on, name)
    assert node_statuses(on, place.connector)[0].busy_blocks == 3
    assert run(place, on, commands=[SEEN], resources={"gpu": 1}) == [f"sees {uuids(gpu1)[3]} has 1"]
    end_all(place)
    assert left_on(gpu1) == ""


def test_a_job_gets_as_many_blocks_as_it_needs_and_neighbours_if_there_are(
    place: RunnerContext, gpu1: Server, ended: None
):
    on = fleet(node(gpu1, blocks=8))
    begin(place, on, "one")
    found = " ".join(uuids(gpu1)[4:8])
    assert run(place, on, commands=[SEEN], resources={"gpu": 4}) == [f"sees {found} has 4"]
    begin(place, on, "two", resources={"gpu": 4})
    found = " ".join(uuids(gpu1)[1:4])
    assert run(place, on, commands=[SEEN], resources={"gpu": 3}) == [f"sees {found} has 3"]


def test_blocks_of_two_gpus_get_both(place: RunnerContext, gpu1: Server, ended: None):
    on = fleet(node(gpu1, blocks=4))
    begin(place, on, "one")
    found = " ".join(uuids(gpu1)[2:4])
    assert run(place, on, commands=[SEEN], resources={"gpu": 2}) == [f"sees {found} has 2"]


def test_a_job_that_takes_the_whole_server_sees_all_of_it(place: RunnerContext, gpu1: Server):
    found = f"sees {' '.join(uuids(gpu1))} has 8"
    assert run(place, fleet(node(gpu1, blocks=8)), commands=[SEEN], resources={"gpu": 8}) == [found]
    assert run(place, fleet(node(gpu1, blocks=1)), commands=[SEEN]) == [found]
    assert left_on(gpu1) == ""


def test_cpus_and_memory_of_a_block_are_limits(place: RunnerContext, gpu1: Server, ended: None):
    on = fleet(node(gpu1, blocks=4))
    begin(place, on, "one")
    limits = "{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}}"
    assert gpu1.run(f"docker inspect -f '{limits}' $(docker ps -q)") == f"{500_000_000} {1024 << 20}"


def test_two_jobs_on_one_server_do_not_meet_at_one_rendezvous_port(
    place: RunnerContext, gpu1: Server, ended: None
):
    on = fleet(node(gpu1, blocks=8))
    rows = [begin(place, on, name, torchrun="train.py") for name in ("one", "two")]
    assert len({row.master_port for row in rows}) == 2


def test_variables_of_the_fleet_and_the_host_reach_every_job(place: RunnerContext, gpu1: Server):
    on = fleet(
        node(gpu1, blocks=8, env={"B": "host", "C": "host"}),
        env={"A": "fleet", "B": "fleet", "C": "fleet"},
    )
    assert run(place, on, commands=['echo "$A $B $C"'], env={"C": "task"}) == ["fleet host task"]
    assert "host" not in place.ledger.get("job").plan.replace("host_key", "").replace("hostfile", "")
