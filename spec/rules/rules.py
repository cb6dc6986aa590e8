"""What must hold between the properties of a document: the table of all rules, and the environment of a run.

A rule names the properties it needs; when one of them is already wrong, the rule keeps silent. Rules look
at nothing outside the files but key files, and there only to warn. A rule returns its findings and never
raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from orch.spec.diagnostics import Diagnostic, Severity
from orch.spec.loader.document import Draft, Path_, env_path
from orch.spec.models import BACKEND_MODELS, Fleet, Host, InitStep, Task
from orch.spec.models.run import Run
from orch.spec.rules import fleet as fleets
from orch.spec.rules import hosts
from orch.spec.rules import project as projects
from orch.spec.rules import run as runs

Findings = Iterator[Diagnostic]
Bearer = TypeVar("Bearer", Fleet, Host, InitStep)


@dataclass(frozen=True)
class Rule:
    """A check of one document. `needs` are the top-level properties it reads."""

    needs: tuple[str, ...]
    check: Callable[[Draft], Findings]


def reserved_variables(draft: Draft) -> Findings:
    for name in cast("Fleet | Run", draft.partial).env:
        if name.startswith(("DSTACK_", "ORCH_")):
            yield draft.diagnostic(
                "ORCH193",
                env_path(draft, name),
                f"{name} is set by orch, this value is not used",
                severity=Severity.WARNING,
                hint="choose another name",
            )


def variables_of_the_caller(draft: Draft) -> Findings:
    """Entries without a value that the caller does not have. A run's are asked for again as it starts."""
    model = cast("Fleet | Run", draft.partial)
    if draft.outside.fence is not None:
        return  # told of all of them alike
    if isinstance(model, Fleet) or not draft.launched:
        yield from resolve_env(model.env, draft.outside.environ, draft)[1]


def variables_of_hosts(draft: Draft) -> Findings:
    hosts = cast(Fleet, draft.partial).ssh_config if draft.outside.fence is None else None
    for index, host in enumerate(hosts.hosts if hosts else ()):
        at = ("ssh_config", "hosts", index, "env")
        yield from resolve_env(host.env, draft.outside.environ, draft, at)[1]


def variables_of_steps(draft: Draft) -> Findings:
    for index, step in enumerate(cast(Fleet, draft.partial).init if draft.outside.fence is None else ()):
        at = ("init", index, "env")
        yield from resolve_env(step.env, draft.outside.environ, draft, at)[1]


# -- what commands hold that works in a Slurm job and not in a container -----------------------------------

_ALONE = "write the program alone, started on each node; `ntasks_per_node`, `torchrun` or `mpirun` start more"
_OUTSIDE = "ask from outside the job: `orch ps`, `orch stop`, `orch fleet`"
_HINTS = {
    "srun": _ALONE,
    "module": "choose an `image` that holds what the modules would load",
    "#SBATCH": "write it as properties: `nodes`, `resources`, `max_duration`, …",
    "scontrol": "`scontrol show hostnames` is all that is there",
    "sbatch": "write a task of its own, started with `orch run`",
    "salloc": "write a task of its own, started with `orch run`",
    **dict.fromkeys(("squeue", "scancel", "sinfo", "sacct"), _OUTSIDE),
}
_SUMMARIES = {
    "module": "environment modules belong to the hosts of a cluster: most images have no `module`",
    "#SBATCH": "`#SBATCH` lines are comments here",
    "scontrol": "no Slurm is in the job's container: this `scontrol` does not work",
}
# Where a shell begins a command: a line, what joins or opens commands, words that take one, assignments.
_COMMAND = re.compile(
    r"(?:^|[;&|(]|\b(?:then|do|else|exec|time)\s)[ \t]*(?:[A-Za-z_]\w{0,99}=\S{0,200}[ \t]+)*"
    r"(?:(?P<word>srun|sbatch|salloc|squeue|scancel|sinfo|sacct)(?=\s|$)"
    r"|(?P<module>module)[ \t]+(?:load|add|use|purge|swap|unload|restore)\b"
    r"|(?P<scontrol>scontrol)(?=\s|$)(?![ \t]+show[ \t]+hostnames?\b)"
    r"|(?P<header>\#SBATCH)\b)",
    re.MULTILINE,
)


def commands_of_slurm(draft: Draft) -> Findings:
    """Each of its words once for each command that holds it."""
    task = cast(Task, draft.partial)
    places: list[Path_] = [("commands",)]
    places += [("groups", index, "commands") for index in range(len(task.groups))]
    for place in places:
        for index, text in draft.texts(place):
            for word in dict.fromkeys(_words(text)):
                summary = _SUMMARIES.get(word, f"no Slurm is in the job's container: `{word}` is not found")
                yield draft.diagnostic(
                    "ORCH164", (*place, index), summary, severity=Severity.WARNING, hint=_HINTS[word]
                )


def _words(text: str) -> Iterator[str]:
    for found in _COMMAND.finditer(text):
        yield next(word for word in found.groups() if word)


FLEET_RULES = (
    Rule(("nodes", "ssh_config"), fleets.nodes_or_hosts),
    Rule(("backends",), fleets.backends_have_drivers),
    Rule(("backend_options",), fleets.options_have_drivers),
    Rule(("backends", "resources"), fleets.disk_of_local_nodes),
    Rule(("nodes", "budget"), fleets.nodes_are_bounded),
    Rule(("blocks", "resources"), fleets.blocks_divide_gpus),
    Rule(("spot_policy", "reservation"), fleets.reservation_is_not_spot),
    Rule(("init",), fleets.init_steps_are_whole),
    Rule(("mounts",), fleets.mounts_have_one_origin),
    Rule(("mounts",), fleets.mount_paths_differ),
    Rule(("ssh_config",), hosts.hosts_are_listed),
    Rule(("ssh_config",), hosts.hosts_differ),
    Rule(("ssh_config",), hosts.internal_addresses_of_all),
    Rule(("ssh_config",), hosts.internal_addresses_differ),
    Rule(("ssh_config",), hosts.network_or_addresses),
    Rule(("ssh_config",), hosts.key_files_are_usable),
    Rule(("env",), reserved_variables),
    Rule(("env",), variables_of_the_caller),
    Rule(("ssh_config",), variables_of_hosts),
    Rule(("init",), variables_of_steps),
)
RUN_RULES = (
    Rule(("image", "python", "nvcc", "docker"), runs.one_image),
    Rule(("spot_policy", "reservation"), fleets.reservation_is_not_spot),
    Rule(("repos",), runs.one_repository),
    Rule(("files",), runs.links_stay_within),
    Rule(("volumes",), runs.mounts_differ),
    Rule(("volumes",), runs.volume_keys_fit),
    Rule(("ports",), runs.ports_differ),
    Rule(("schedule",), runs.weekdays_have_names),
    Rule(("signal", "max_duration"), runs.signal_has_an_end),
    Rule(("registry_auth",), projects.secrets_are_references),
    Rule(("env",), reserved_variables),
    Rule(("env",), variables_of_the_caller),
)
TASK_RULES = (
    *RUN_RULES,
    Rule(("torchrun", "mpirun"), runs.one_launcher),
    Rule(("commands", "torchrun", "mpirun", "image", "groups", "entrypoint"), runs.something_to_run),
    Rule(
        ("groups", "nodes", "commands", "ports", "entrypoint", "torchrun", "mpirun"), runs.groups_stand_alone
    ),
    Rule(("groups", "image"), runs.groups_have_something_to_run),
    Rule(("groups",), runs.group_addresses_exist),
    Rule(("commands", "groups"), commands_of_slurm),
    Rule(("torchrun",), runs.torchrun_has_program),
    Rule(("torchrun", "nodes"), runs.elastic_fits),
    Rule(("mpirun", "startup_order", "stop_criteria"), runs.mpirun_decides),
)
BACKEND_RULES = (
    Rule((), projects.secrets_are_references),
    Rule(("creds", "kubeconfig", "vpc_name", "vpc_ids"), projects.backend_is_whole),
)
RULES: Mapping[str, tuple[Rule, ...]] = {
    "fleet": FLEET_RULES,
    "task": TASK_RULES,
    "dev-environment": (*RUN_RULES, Rule(("ide", "version"), runs.ide_of_version)),
    "volume": (
        Rule(("backend", "region", "size", "volume_id", "claim_name"), fleets.volume_is_whole),
        Rule(("backend",), fleets.volume_has_driver),
    ),
    "project": (
        Rule((), projects.secrets_are_references),
        Rule((), projects.foreign_backends),
        Rule((), projects.backends_differ),
        Rule(("backends", "projects"), projects.backends_are_whole),
        Rule(("backends", "projects", "project"), projects.one_project),
        Rule(("profiles",), projects.profiles_differ),
    ),
    **dict.fromkeys(BACKEND_MODELS, BACKEND_RULES),
}


def check_document(draft: Draft) -> Iterable[Diagnostic]:
    """Findings of all rules for one document."""
    if draft.partial is None:
        return
    for rule in RULES[draft.kind]:
        if not draft.broken.intersection(rule.needs):
            yield from rule.check(draft)


def resolve_env(
    env: Mapping[str, str | None], environ: Mapping[str, str], where: Draft, at: Path_ = ("env",)
) -> tuple[dict[str, str], tuple[Diagnostic, ...]]:
    """The variables with their values, and an ORCH173 for each that is taken from `environ` and is not set
    there.

    Unset variables are left out of the result. `where` is the document they stand in, `at` their place there.
    """
    given = {name: environ.get(name) if value is None else value for name, value in env.items()}
    unset = tuple(
        where.unset(name, env_path(where, name, at)) for name, value in given.items() if value is None
    )
    return {name: value for name, value in given.items() if value is not None}, unset


def filled(fleet: Fleet, environ: Mapping[str, str]) -> Fleet:
    """The fleet with the caller's values of variables that have none of their own, as far as they are set."""

    def given(part: Bearer) -> Bearer:
        if None not in part.env.values():
            return part
        env = {name: environ.get(name) if value is None else value for name, value in part.env.items()}
        return part.model_copy(update={"env": env})

    fleet = given(fleet)
    init = tuple(given(step) for step in fleet.init)
    if init != fleet.init:
        fleet = fleet.model_copy(update={"init": init})
    ssh = fleet.ssh_config
    hosts = tuple(given(host) for host in ssh.hosts) if ssh else ()
    if ssh is not None and hosts != ssh.hosts:
        fleet = fleet.model_copy(update={"ssh_config": ssh.model_copy(update={"hosts": hosts})})
    return fleet
