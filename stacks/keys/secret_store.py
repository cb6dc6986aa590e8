"""Changes of a project's secrets. Only a program that the engine runs under the stack's lock makes them, from
what the stack then has: of two at once none is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from orch import __version__
from orch.spec.confidential import remember
from orch.spec.errors import ExitCode
from orch.spec.grammar.interpolate import check_secret_name
from orch.spec.grammar.values import Problem
from orch.spec.state import SCHEMA
from orch.stacks.errors import EngineFailed, StackError, StackLocked
from orch.stacks.project.passphrase import UNREADABLE
from orch.stacks.pulumi.operation import EngineCall, engine
from orch.stacks.pulumi.progress import Listener
from orch.stacks.pulumi.recovery import recover, when_free
from orch.stacks.record.change_log import logged
from orch.stacks.secrets.values import ProjectSecrets, Values, no_such_secret
from orch.stacks.stack.command import init
from orch.stacks.stack.state import refuse_newer

LARGEST = 64 * 1024
"""Bytes of the largest value in UTF-8. Linux takes no variable of more than 128 KiB (MAX_ARG_STRLEN)."""


class BadSecret(StackError):
    """A name or value that no secret can have."""

    exit_code = ExitCode.USAGE


class SecretStore(ProjectSecrets):
    """The secrets of one project, and what changes them. A rehearsal changes those of the real project."""

    def set(self, name: str, value: str, listener: Listener) -> bool:
        """Set a secret; True when there was none of that name. Raises BadSecret, StackLocked, StackError."""
        _check(name, value)
        remember([value])
        is_new = name not in self.set_at
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")

        def change(values: Values, set_at: Values) -> None:
            values[name], set_at[name] = value, moment

        with logged(self.project, "secret set", f"secret {name}", listener) as outcome:
            self._change(change, listener)
            outcome.result = "set" if is_new else "replaced"
        return is_new

    def delete(self, name: str, listener: Listener) -> None:
        """Delete a secret. Raises NoSuchSecret, StackLocked, StackError."""
        if name not in self.set_at:
            raise no_such_secret(name, self.set_at, self.project)

        def change(values: Values, set_at: Values) -> None:
            values.pop(name, None)
            set_at.pop(name, None)

        with logged(self.project, "secret delete", f"secret {name}", listener) as outcome:
            self._change(change, listener)
            outcome.result = "deleted"

    def _change(self, change: Callable[[Values, Values], None], listener: Listener) -> None:
        """Apply a change while the engine holds the stack."""
        stack = self.stack

        def up() -> None:
            recover(stack, listener)
            if not stack.exists:
                init(stack)
            words = ["up", "--yes", "--skip-preview", "--refresh=false"]
            engine(stack, words, EngineCall(listener, planning=True), lambda: _register(change))

        try:
            when_free(stack, listener, up)
        except StackLocked as error:
            raise StackLocked(
                "the secrets of this project are being changed by somebody else",
                where=error.where,
                hint=error.hint,
                code=error.code,
            ) from error
        except EngineFailed as error:
            raise _not_changed(error) from error
        except StackError as error:
            if error.code == UNREADABLE:
                error.summary = "the secrets of this project cannot be decrypted, so none can be set"
            raise


def _register(change: Callable[[Values, Values], None]) -> None:
    """The program of the stack: what it has, changed."""
    import pulumi

    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    answer = pulumi.runtime.invoke("pulumi:pulumi:readStackOutputs", {"name": name}).value or {}
    outputs: dict[str, Any] = refuse_newer(answer.get("outputs") or {})
    values, set_at = dict(outputs.get("values") or {}), dict(outputs.get("set_at") or {})
    change(values, set_at)
    pulumi.export("orch", {"version": __version__, "schema": SCHEMA})
    pulumi.export("set_at", set_at)
    pulumi.export("values", pulumi.Output.secret(values))


def _not_changed(error: EngineFailed) -> StackError:
    return StackError(
        "the secrets of this project were not changed", detail=error.detail, hint=error.hint, code=error.code
    )


def _check(name: str, value: str) -> None:
    try:
        check_secret_name(name)
    except Problem as problem:
        raise BadSecret(problem.summary, hint=problem.hint, code=problem.code) from problem
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadSecret(
            f"the value of {name} is no text in UTF-8",
            hint="set its base64 form, and decode it in the job",
        ) from None
    if not value:
        raise BadSecret(f"the value of {name} is empty", hint="`orch secret delete` removes a secret")
    if "\0" in value:
        raise BadSecret(
            f"the value of {name} holds a NUL character, which no variable can",
            hint="set its base64 form, and decode it in the job",
        )
    if size > LARGEST:
        raise BadSecret(
            f"the value of {name} has {size:,} bytes, a secret has {LARGEST:,} at most",
            hint="keep large files elsewhere, and set the key to them as the secret",
        )
