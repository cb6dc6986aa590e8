"""Tests in several processes at once (`pytest -n 4`, pytest-xdist): who runs what, when, and how it ends.

A file's tests run in one process, which makes the file's fixtures once. Fixtures of a session are made once
in each process that needs them: whatever has a name or a number of its own outside the process (containers,
networks, ports, folders) must differ there, and no test may count what is not its own.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from kit import samples
from kit.engine import forkserver, warm
from kit.engine.transit import Transit

# Each of their tests has all it needs for itself (or a fixture that is worth making in each process).
APART = frozenset(
    {
        "tests/components/aws/test_engine.py",
        "tests/e2e/test_aws_gangs.py",
        "tests/e2e/test_aws_kills.py",
        "tests/e2e/test_aws_preview.py",
        "tests/e2e/test_aws_together.py",
        "tests/e2e/test_aws_types.py",
        "tests/e2e/test_gcp_gangs.py",
        "tests/e2e/test_gcp_kills.py",
        "tests/e2e/test_gcp_preview.py",
        "tests/e2e/test_gcp_shared_network.py",
        "tests/e2e/test_node_groups.py",
        "tests/e2e/test_ssh_fleet_ways.py",
        "tests/e2e/test_up_faults.py",
        "tests/e2e/test_upgrade.py",
        "tests/providers/simulated/test_in_the_engine.py",
    }
)

# Files whose tests use what is dear to make, once for a session: they go to one process.
TOGETHER = {
    "tests/e2e/test_quickstart.py": "the quickstart's fleet",
    "tests/e2e/test_arrays.py": "the quickstart's fleet",
    "tests/e2e/test_verify.py": "the quickstart's fleet",
    "tests/runner/test_dev_environments.py": "the quickstart's fleet",
    "tests/runner/test_fabfile.py": "the quickstart's fleet",
    "tests/runner/test_run_exec.py": "the quickstart's fleet",
    "tests/runner/test_verbs.py": "the quickstart's fleet",
}

# What needs an engine or containers, by file and by fixture. All else is `quick`, but for the tests of
# PROGRAMS, which are about programs that they start (drivers, servers, nodes' scripts, tools), and of
# GENERATED, which go through every property of the language or through what chance makes.
WITH_PARTS = (
    "tests/components/aws/test_engine.py",
    "tests/components/gcp/test_engine.py",
    "tests/components/gcp/test_shapes.py",
    "tests/components/nebius/test_reference_fleets.py",
    "tests/e2e/",
    "tests/images/test_build.py",
    "tests/images/test_job.py",
    "tests/images/test_node.py",
    "tests/images/test_variants_built.py",
    "tests/providers/gcp/test_local_nodes.py",
    "tests/providers/gcp_bridge/test_in_the_engine.py",
    "tests/providers/runpod/test_local_nodes.py",
    "tests/providers/simulated/test_in_the_engine.py",
    "tests/providers/simulated/test_local_nodes.py",
    "tests/providers/test_local_node_silent.py",
    "tests/providers/test_local_volume.py",
    "tests/runner/health/test_kernel_names.py",
    "tests/stacks/test_compressed_state.py",
    "tests/stacks/test_while_held.py",
)
PARTS = frozenset({"engine", "lab", "room", "rack", "server", "local", "quickstart", "pods", "postgres"})
PROGRAMS = (
    "tests/backends/test_skeleton.py",
    "tests/catalog/test_refresh.py",
    "tests/ci/test_comments.py",
    "tests/ci/test_simulators.py",
    "tests/ci/test_workflows.py",
    "tests/cli/test_names_and_places.py",
    "tests/cli/test_pending.py",
    "tests/cli/test_untrusted.py",
    "tests/cli/test_wrong_crusoe.py",
    "tests/cli/test_monitoring_verbs.py",
    "tests/cli/test_traces.py",
    "tests/cli/test_wrong_lambda.py",
    "tests/cli/test_wrong_nebius.py",
    "tests/cli/test_wrong_runpod.py",
    "tests/cli/test_wrong_runbooks.py",
    "tests/components/aws/test_userdata.py",
    "tests/components/gcp/test_account.py",
    "tests/components/gcp/test_userdata.py",
    "tests/components/test_idleness.py",
    "tests/components/test_init_steps.py",
    "tests/components/test_lifetime.py",
    "tests/components/test_notices.py",
    "tests/components/test_pod_bootstrap.py",
    "tests/components/test_polling.py",
    "tests/components/test_tunnels.py",
    "tests/policies/test_pack.py",
    "tests/providers/gcp/test_account.py",
    "tests/providers/test_ssh_host_steps.py",
    "tests/runner/health/test_kernel_names.py",
    "tests/runner/kubernetes/test_connector.py",
    "tests/runner/kubernetes/test_login.py",
    "tests/runner/kubernetes/test_shell.py",
    "tests/runner/test_attempts.py",
    "tests/runner/test_broken_logs.py",
    "tests/runner/test_controller.py",
    "tests/runner/test_dead_connections.py",
    "tests/runner/test_detached.py",
    "tests/runner/test_followers.py",
    "tests/runner/test_forwards.py",
    "tests/runner/test_init_steps.py",
    "tests/runner/test_metrics.py",
    "tests/runner/test_monitoring.py",
    "tests/runner/test_node_lives.py",
    "tests/runner/test_node_scripts.py",
    "tests/runner/test_other_ways.py",
    "tests/runner/test_overtaken.py",
    "tests/runner/test_processes.py",
    "tests/runner/test_repos.py",
    "tests/runner/test_run_secrets.py",
    "tests/runner/test_upload.py",
    "tests/runner/test_volume_detaching.py",
    "tests/runner/test_waiting_line.py",
    "tests/runbooks/test_engine.py",
    "tests/runbooks/test_words.py",
    "tests/stacks/test_locks.py",
    "tests/stacks/test_program_end.py",
    "tests/templates/test_every_template.py",
    "tests/test_bench.py",
    "tests/test_forkserver.py",
    "tests/test_packaging.py",
    "tests/test_workers.py",
)
GENERATED = (
    "tests/cli/test_hostile_words.py",
    "tests/providers/gcp_bridge/test_properties.py",
    "tests/runner/hosts/test_odd_answers.py",
    "tests/spec/test_fuzz.py",
    "tests/spec/test_hostile_texts.py",
    "tests/spec/test_lent.py",
    "tests/spec/test_limits.py",
    "tests/test_every_property.py",
    "tests/test_hostile_values.py",
)
NOT_QUICK = WITH_PARTS + PROGRAMS + GENERATED

# What takes minutes begins first, so that no process is left alone with it at the end. Roughly by length.
FIRST = (
    "tests/e2e/test_ssh_fleet.py",
    "tests/runner/test_faults.py",
    "tests/e2e/test_quickstart.py",
    "tests/runner/test_verbs.py",
    "tests/e2e/test_canary.py",
    "tests/e2e/test_hostile.py",
    "tests/components/gcp/test_engine.py",
    "tests/e2e/test_node_groups.py",
    "tests/components/gcp/test_shapes.py",
    "tests/e2e/test_aws_train.py",
    "tests/e2e/test_gcp_nccl.py",
    "tests/e2e/test_ssh_fleet_check.py",
    "tests/runner/hosts/test_survey.py",
    "tests/runner/test_runs.py",
    "tests/e2e/test_fleet.py",
    "tests/e2e/test_hostlab.py",
    "tests/cli/",
    "tests/images/",
    "tests/runner/test_blocks",
    "tests/runner/test_transport",
    "tests/e2e/",
    "tests/components/aws/test_engine.py",
    "tests/providers/simulated/test_in_the_engine.py",
    # Of the quick ones: each is one process's for a tenth of them all.
    "tests/test_every_property.py",
    "tests/test_hostile_values.py",
    "tests/templates/test_every_template.py",
    "tests/spec/",
)


class Sharing(LoadScopeScheduling):
    """Gives files to processes, those of TOGETHER as one, and the tests of APART one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else TOGETHER.get(file, file)


def place(nodeid: str) -> int:
    """Where in the order of FIRST a test begins."""
    return next((at for at, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Sharing | None:
    if config.getvalue("dist") != "load":
        return None  # another way was asked for
    config.option.loadscopereorder = False
    return Sharing(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of NOT_QUICK are not even imported by a run of quick tests, unless one says that it is quick."""
    if not samples.Run.quick or collection_path.suffix != ".py":
        return None
    if not collection_path.is_relative_to(config.rootpath):
        return None
    at = collection_path.relative_to(config.rootpath).as_posix()
    left_out = at.startswith(NOT_QUICK) and "mark.quick" not in collection_path.read_text("utf-8")
    return left_out or None


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    parts = item.nodeid.startswith(NOT_QUICK) or not PARTS.isdisjoint(getattr(item, "fixturenames", ()))
    stage = item.get_closest_marker("soak") or item.get_closest_marker("kubernetes")
    if not parts and not _on_postgres(item) and stage is None:
        item.add_marker(pytest.mark.quick)


def _on_postgres(item: pytest.Item) -> bool:
    """Whether it is a test of `ledger_url` with a server."""
    case = getattr(item, "callspec", None)
    return case is not None and case.params.get("ledger_url") == "postgresql"


FOUND = pytest.StashKey[dict[str, str | None]]()

# What a quick test finds instead of them, so that it fails wherever it needs one.
NO_PARTS = {"ORCHCTL_ENGINE_HOME": f"{os.devnull}/engine", "DOCKER_HOST": f"unix://{os.devnull}/docker"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    quick = item.get_closest_marker("quick") is not None
    item.stash[FOUND] = {name: os.environ.get(name) for name in NO_PARTS if quick}
    os.environ |= NO_PARTS if quick else {}
    try:
        return (yield)
    finally:
        _put_back(item.stash[FOUND])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """What other tests have made in this process is removed with what it needs, also after a quick one."""
    _put_back(item.stash[FOUND])
    return (yield)


def _put_back(found: Mapping[str, str | None]) -> None:
    for name, value in found.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# Most of what a test makes goes by itself, and what was collected stays to the end: to look through all of it
# for circles every 700 objects, as Python does, is a third of what quick tests take.


def pytest_configure(config: pytest.Config) -> None:
    samples.Run.quick = config.option.markexpr == "quick"
    gc.set_threshold(100_000, 20, 100)  # as the command line has it
    if not hasattr(config, "workerinput"):
        os.environ |= Transit().environment
    elif signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup`, programs of tests would ignore it too
    forkserver.GIVEN.update(getattr(config, "workerinput", {}).get("fork_servers", {}))


def pytest_collection_finish() -> None:
    gc.freeze()


_OPEN = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_MANY = 250


def pytest_runtest_logfinish() -> None:
    """What a test left open in circles is closed before its process has no number left to give a file."""
    if len(os.listdir(_OPEN)) > _MANY:
        gc.collect()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest looks through all of it five times more


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """A worker calls through the processes of the one that started it, which import once for all workers."""
    node.workerinput["fork_servers"] = forkserver.given(forkserver.LOADED, warm.LIBRARIES)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if samples.Run.quick:
        items[:], left_out = samples.split(items)
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid))


def tell_less(config: pytest.Config) -> None:
    """That a test was set up and torn down without a fault is not told where nobody shows it: it is two
    thirds of what a process tells the one that started it."""
    shown = config.getoption("durations", None) is not None or config.getoption("xmlpath", None)
    if shown or not {*"PA"}.isdisjoint(config.getoption("reportchars") or ""):
        return
    (interactor,) = (each for each in config.pluginmanager.get_plugins() if hasattr(each, "sendevent"))
    send = interactor.sendevent

    def sendevent(name: str, **told: Any) -> None:
        report = told.get("data", {})
        if name != "testreport" or report["when"] == "call" or report["outcome"] != "passed":
            send(name, **told)

    interactor.sendevent = sendevent


# Left to itself, pytest-xdist gives its processes ten seconds after Ctrl-C, and their containers stay.


class Interrupt:
    """Ctrl-C in one of the processes: the test ends, none begins, what fixtures have made is removed."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._in_test = False
        signal.signal(signal.SIGINT, self._take)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        again = bool(self._session.shouldstop)
        self._session.shouldstop = "interrupted"
        if self._in_test and not again:
            pytest.fail("interrupted", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        self._in_test = True
        try:
            if self._session.shouldstop:
                pytest.fail("interrupted", pytrace=False)
            return (yield)
        finally:
            self._in_test = False


def pytest_sessionstart(session: pytest.Session) -> None:
    """The second Ctrl-C ends everything at once."""
    plugins = session.config.pluginmanager
    if hasattr(session.config, "workerinput"):
        plugins.register(Interrupt(session))
        tell_less(session.config)
    elif sharing := plugins.get_plugin("dsession"):

        def stop(signum: int, frame: FrameType | None) -> None:
            sharing.shouldstop = "interrupted"
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.stderr.write("\ninterrupted: what the tests have made is being removed\n")

        signal.signal(signal.SIGINT, stop)
