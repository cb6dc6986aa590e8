"""`orch:ssh:Host`: an existing server in a fleet.

Inputs: the way to it (`address`, `port`, `user`, `identity` = path of a private key or null for the agent,
`jump` = hops from the outside in, `ssh_alias` = the name by which the caller's own SSH configuration may know
a ProxyCommand, `host_key` pinned; a `proxy_command` that a former version recorded is not run), what the
fleet gives it (`name`, `stack`, `blocks`, `internal_ip`, `env`, `rack`, `tags`, `authorized_keys`, `init` =
records of the steps that it runs, secret), and what
it was registered as (`status` = "reachable", and the facts of `HostFacts.registered()`). Drift is what
differs from the latter, and steps of `init` that failed (`status` says so): an update runs them again.
Output: `facts`, everything known of it. A host that does not answer is a value here, not an error: only
creating and mending it fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from orch.providers.orch.handler import (
    OBSERVED,
    Inputs,
    LeftBehind,
    ProviderError,
    State,
    StepFailed,
    step_error,
)
from orch.runner.errors import HostKeyRefused, HostUnreachable, LoginRefused, RunnerError
from orch.runner.hosts.facts import HostFacts, read_facts
from orch.runner.hosts.host_facts import UnreadOutput
from orch.runner.hosts.registration import BUSY, FORCED, enter, leave, mark, registration_id
from orch.runner.node_api.claims import Claim
from orch.runner.node_api.commands import Command, as_root
from orch.runner.node_api.connector import Connector
from orch.runner.preparation.init_steps import look, prepare, recorded
from orch.runner.ssh.pool import SshConnector
from orch.spec.access import Jump, SshAccess
from orch.spec.state import NodeState, without_commands

REACHABLE = "reachable"
DEADLINE_S = 12.0
"""How long a host may take to be reached: one try, or several where it refuses at once."""

LEAVE_S = 60.0
"""The same where it is left: what is not taken away then, people's keys among it, stays there for good."""

MEMORY_TOLERANCE = 0.02
"""A kernel takes a little more or less of the same memory at each boot and update."""


class SshHostHandler:
    computed: ClassVar[frozenset[str]] = frozenset({"facts"})
    secrets: ClassVar[frozenset[str]] = frozenset()
    tools: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        deadline_s: float = DEADLINE_S,
        leave_s: float = LEAVE_S,
        connector: Connector | None = None,
    ) -> None:
        """`connector`: what leads to hosts, where that is not SSH."""
        self._deadline_s, self._leave_s = deadline_s, leave_s
        self._guard = threading.Lock()
        self._shared = connector

    def check(self, inputs: Inputs) -> list[tuple[str, str]]:
        required = ("name", "stack", "address", "port", "user", "host_key", "machine_id")
        return [(key, "must be set") for key in required if inputs.get(key) in (None, "")]

    def replaces(self, key: str, old: Any, new: Any) -> bool:
        # Another machine under the same name: the old one is left as it was found, the new one registered.
        return key in {"name", "stack"} or (key == "machine_id" and bool(old) and old != new)

    def create(self, inputs: Inputs) -> tuple[str, State]:
        try:
            return inputs["name"], self._enter(inputs, new=True)
        except StepFailed:
            # It does not become a host of the fleet, so nobody would take away what was put there.
            with suppress(RunnerError):
                self._connector().run(
                    _node(inputs), leave(inputs["stack"], inputs["user"]), deadline_s=self._deadline_s
                )
            raise

    def read(self, resource_id: str, state: State) -> State | None:
        try:
            node = _node(state)
            facts = read_facts(node, self._connector(), deadline_s=self._deadline_s)
            return _outputs(facts, state, self._kept_out(node, state))
        except RunnerError as error:
            trouble = _reason(error)
        except Exception as error:  # noqa: BLE001 - what one host says must not end the refresh of all others
            trouble = f"not understood: {type(error).__name__}: {error}"
        return {"facts": state.get("facts"), OBSERVED: {"status": trouble}}

    def update(self, resource_id: str, state: State, inputs: Inputs) -> State:
        outputs = self._enter(inputs, ran=bool(state.get("init")))
        drift = [
            f"{key} is {value}, registered is {inputs[key]}"
            for key, value in outputs[OBSERVED].items()
            if key in inputs and value != inputs[key]
        ]
        if drift:
            raise ProviderError(
                f"{inputs['name']} is not as it was registered",
                where=_address(inputs),
                detail="; ".join(drift),
                hint="mend the host, or take it as it is: `orch up FILE --accept-drift`",
                code="ORCH385",
            )
        return outputs

    def delete(self, resource_id: str, state: State) -> None:
        try:
            result = self._connector().run(
                _node(state),
                leave(state["stack"], state["user"], force=os.environ.get(FORCED) == "1"),
                deadline_s=self._leave_s,
                connect_timeout_s=self._leave_s,
            )
        except (HostUnreachable, HostKeyRefused, LoginRefused) as error:
            # That it is gone must not keep the fleet from shrinking.
            raise LeftBehind(
                f"{state['name']} leaves the fleet, and nothing was taken away there ({_reason(error)})",
                where=_address(state),
                detail="if it is still there, so are /var/lib/orch and the keys that the fleet let in",
                hint=f"take both away by hand: keys are the lines that end in `{mark(state['stack'])}`",
            ) from error
        if result.exit_code == BUSY:
            holder = Claim.parse(result.stdout.strip())
            raise ProviderError(
                f"{state['name']} is busy with {holder}",
                where=_address(state),
                hint=f"wait for it, or {holder.remedy} where it was started"
                if holder.remedy
                else "wait for it",
                code="ORCH386",
            )
        if not result.ok:
            raise ProviderError(
                f"{state['name']} could not be left as it was found",
                where=_address(state),
                detail=result.stderr.strip()[-300:],
                code="ORCH387",
            )

    def _enter(self, inputs: Inputs, *, new: bool = False, ran: bool = False) -> State:
        """Connect, put in place what is orch's own, run the steps of `init`, and look.

        `new`: it was no host of the fleet, `ran`: there were steps before. Steps that failed keep it out also
        when they are in no record: those of an `up` that was taken back. Raises ProviderError naming the
        host, StepFailed among them.
        """
        node = _node(inputs)
        try:
            result = self._connector().run(
                node,
                enter(inputs["stack"], inputs["user"], inputs.get("authorized_keys") or ()),
                deadline_s=self._deadline_s,
            )
            if not result.ok:
                raise ProviderError(
                    f"{node.name} does not let orch in as root",
                    where=_address(inputs),
                    detail=result.stderr.strip()[-300:],
                    hint=f"give {node.ssh.user} passwordless sudo: `orch check` tells more",
                    code="ORCH366",
                )
            if inputs.get("init") or ran or self._kept_out(node, inputs):
                self._run_steps(node, inputs, new=new)
            facts = read_facts(node, self._connector(), deadline_s=self._deadline_s)
        except RunnerError as error:
            raise ProviderError(
                error.summary,
                where=error.where or _address(inputs),
                detail=error.detail,
                hint=error.hint,
                code=error.code or "ORCH364",
            ) from error
        return _outputs(facts, inputs)

    def _run_steps(self, node: NodeState, inputs: Inputs, *, new: bool) -> None:
        """Raises StepFailed, ProviderError, RunnerError."""
        command = prepare(registration_id(inputs["stack"]), recorded(inputs.get("init")), new=new)
        done = self._connector().run(node, command, deadline_s=self._deadline_s)
        if not done.ok:
            raise step_error(node.name, _address(inputs), done.exit_code, done.stdout, done.stderr)

    def _kept_out(self, node: NodeState, inputs: Inputs) -> str:
        """Return the reason that steps of the fleet keep the host out, "" if they do not. Raises
        RunnerError."""
        command = Command(as_root(look(registration_id(inputs["stack"]))), "look at the steps of `init`")
        done = self._connector().run(node, command, deadline_s=self._deadline_s)
        if not done.ok:
            said = done.stderr.strip() or f"exit code {done.exit_code}"
            return f"it does not tell of its steps: {said[-300:]}"
        return done.stdout.strip()

    def _connector(self) -> Connector:
        """One for all hosts of the process: a jump host is connected to once."""
        with self._guard:
            if self._shared is None:
                self._shared = SshConnector(deadline_s=self._deadline_s)
            return self._shared


def _node(inputs: Inputs) -> NodeState:
    hops = tuple(
        Jump(**{**hop, "identity": _at_home(hop.get("identity"))}) for hop in inputs.get("jump") or ()
    )
    node = NodeState(
        index=0,
        name=inputs["name"],
        access=SshAccess(
            address=inputs["address"],
            port=int(inputs["port"]),
            user=inputs["user"],
            identity=_at_home(inputs.get("identity")),
            host_key=inputs["host_key"],
            jump=hops,
            proxy_command=inputs.get("proxy_command"),
            ssh_alias=inputs.get("ssh_alias"),
        ),
    )
    return without_commands(node)


def _at_home(identity: str | None) -> str | None:
    """A key's path as it lies here: the state says it relative to the project, which others have elsewhere.

    The engine starts this process in the project's folder, or in one below its `.orch`.
    """
    if identity is None or identity.startswith("~") or Path(identity).is_absolute():
        return identity
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".orch").is_dir()), here)
    return str(root / identity)


def _outputs(facts: HostFacts, registered: State, kept_out: str = "") -> State:
    now = {key: value for key, value in facts.registered().items() if key in registered}
    memory = registered.get("memory_mib")
    if memory and abs(now.get("memory_mib", memory) - memory) <= memory * MEMORY_TOLERANCE:
        now["memory_mib"] = memory
    internal = registered.get("internal_ip")
    if internal is not None:
        now["internal_ip"] = internal if facts.owns(internal) else None
    # A fact that could not be read is not another one: what is amiss is the status, with the tool's name.
    unknown = [each for each in facts.unread if each.part in _RECORDED]
    status = f"kept out: {kept_out}" if kept_out else REACHABLE
    if unknown:
        tools = ", ".join(dict.fromkeys(each.tool for each in unknown))
        status = f"reachable, but what {tools} said cannot be read"
        now = {key: value for key, value in now.items() if not _lost(key, value, unknown)}
    return {"facts": facts.model_dump(mode="json", by_alias=True), OBSERVED: {"status": status, **now}}


_GPUS = frozenset({"gpu_count", "gpu_driver", "gpu_memory_mib", "gpu_name", "gpu_vendor"})
_RECORDED = {
    **dict.fromkeys(("nvidia", "amd.smi", "amd", "gaudi", "tt.smi"), _GPUS),
    "docker": frozenset({"docker"}),
    "system": frozenset({"arch", "cpus", "machine_id", "memory_mib"}),
    "net": frozenset({"internal_ip"}),
}
"""What is registered of a host, by the part of its answer that tells it."""


def _lost(key: str, value: Any, unread: Iterable[UnreadOutput]) -> bool:
    return not value and any(key in _RECORDED[each.part] for each in unread)


def _reason(error: RunnerError) -> str:
    if isinstance(error, HostKeyRefused):
        return f"host key refused: {error.detail or error.summary}"
    if isinstance(error, LoginRefused):
        return f"login refused: {error.detail or error.summary}"
    return f"unreachable: {error.detail or error.summary}"


def _address(inputs: Inputs) -> str:
    return f"{inputs['user']}@{inputs['address']}:{inputs['port']}"
