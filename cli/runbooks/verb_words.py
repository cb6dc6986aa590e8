"""Whether the words of a runbook's step are a command of orch, by the table of verbs. Calls none of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orch.cli.verbs import VERBS, load
from orch.runbooks.words import Word, reaches_a_shell
from orch.spec.grammar.values import Problem, shown
from orch.spec.suggest import hint_for

_COMMAND = re.compile(rf"`orch ((?:{'|'.join(re.escape(each.name) for each in VERBS)})(?: [^`\n]*)?)`")
# What these verbs take after their first argument, a shell on a node reads.
_TO_A_SHELL = {"exec": "command", "ssh": "arguments"}
# A run of a runbook is one change; one inside another would wait for itself.
_NOT_HERE = ("runbook",)


def wrong_words(words: tuple[Word, ...]) -> Iterator[tuple[int, Problem]]:
    """Yield the problems of a command, without `orch`: the number of the word, and the problem."""
    if not words:
        yield 0, Problem("ORCH414", "a verb is missing after `orch`", hint="`orch --help` lists them")
        return
    names = [verb.name for verb in VERBS]
    if words[0].names or words[0].literal not in names:
        yield 0, _no_verb(words[0], names, "orch")
        return
    if words[0].literal in _NOT_HERE:
        hint = "write its steps here, or run it before this one"
        yield 0, Problem("ORCH414", "a runbook does not run another one", hint=hint)
        return
    command, at, path = load(words[0].literal), 1, f"orch {words[0].literal}"
    while (verbs := getattr(command, "commands", None)) is not None:
        word = words[at] if at < len(words) else None
        if word is None and command.invoke_without_command:
            return
        if word is None or word.names or word.literal not in verbs:
            if (default := _default(verbs)) is None:
                yield (at if word else at - 1), _no_verb(word, list(verbs), path)
                return
            command = default
            break
        command, path, at = verbs[word.literal], f"{path} {word.literal}", at + 1
    yield from _wrong_arguments(command, words, at, path)


def _default(verbs: Mapping[str, Any]) -> Any:
    """The verb of a group that is meant where none is named, as `orch offers FILE` has one."""
    return next((each for each in verbs.values() if each.hidden), None)


def _no_verb(word: Word | None, names: Sequence[str], path: str) -> Problem:
    if word is None:
        return Problem("ORCH414", f"a verb is missing after `{path}`", hint=f"`{path} --help` lists them")
    hint = hint_for(str(word), names) or f"`{path} --help` lists them"
    return Problem("ORCH414", f"`{path}` has no verb {shown(str(word))}", hint=hint)


def _wrong_arguments(
    command: Any, words: tuple[Word, ...], at: int, path: str
) -> Iterator[tuple[int, Problem]]:
    options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
    takes_file = (
        {"-f", "--file"} if any(each.name in ("target", "file") for each in command.params) else set()
    )
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    positional: list[int] = []
    seen = set[str]()
    while at < len(words):
        word = words[at]
        if word.parts == ("--",):
            positional += range(at + 1, len(words))
            break
        if word.literal.startswith("-") and str(word) != "-":
            name = word.literal.partition("=")[0] if word.literal.startswith("--") else str(word)
            option = options.get(name) or (options.get(name[:2]) if not name.startswith("--") else None)
            if option is None and name not in takes_file:
                known = [each for each in options if each.startswith("--")]
                hint = hint_for(name, known) or f"`{path} --help` lists them"
                yield at, Problem("ORCH414", f"`{path}` has no option {shown(name)}", hint=hint)
            elif option is not None and not option.is_flag:
                seen.add(option.name)
                apart = name == str(word)
                if apart and at + 1 == len(words):
                    yield at, Problem("ORCH414", f"`{name}` needs a value", hint=f"write `{name} VALUE`")
                at += 1 if apart else 0
        else:
            positional.append(at)
        at += 1
    most = None if any(each.nargs < 0 for each in arguments) else len(arguments)
    if most is not None and len(positional) > most:
        word = shown(str(words[positional[most]]))
        yield (
            positional[most],
            Problem("ORCH414", f"`{path}` takes no argument {word}", hint=f"`{path} --help`"),
        )
    required = [each for each in arguments if each.required]
    if len(positional) < len(required):
        lacking = required[len(positional)].metavar or required[len(positional)].name.upper()
        yield 0, Problem("ORCH414", f"`{path}` lacks {lacking}", hint=f"`{path} --help` shows what it takes")
    if path.removeprefix("orch ") in _TO_A_SHELL:
        for number in positional[1:]:
            for name in words[number].names:
                yield number, reaches_a_shell(name)


def has_option(words: Sequence[str], option: str) -> bool:
    """Return True if the verb of a valid command has an option."""
    return any(option in each.opts for each in _command(words).params)


def rehearsed(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a verb in a rehearsal, where it has one."""
    if "--rehearse" in words or not has_option(words, "--rehearse"):
        return words
    at = words.index("--") if "--" in words else len(words)
    return (*words[:at], "--rehearse", *words[at:])


def rehearsed_commands(text: str) -> str:
    """A text for people whose commands, in backticks, are those of a rehearsal."""
    return _COMMAND.sub(lambda match: f"`orch {' '.join(rehearsed(tuple(match[1].split(' '))))}`", text)


def _command(words: Sequence[str]) -> Any:
    command, at = load(words[0]), 1
    while (verbs := getattr(command, "commands", None)) is not None:
        word = words[at] if at < len(words) else ""
        if word not in verbs:
            return _default(verbs) or command
        command, at = verbs[word], at + 1
    return command


def plan_words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command that shows what a command would do and changes nothing; None where there is none."""
    own = tuple(each for each in words if each not in ("--yes", "-y"))
    if words[0] == "up":
        keep = [each for each in own[1:] if not each.startswith("-") or has_option(("preview",), each)]
        return ("preview", *keep)
    if has_option(words, "--plan-only"):
        return own if "--plan-only" in own else (*own, "--plan-only")
    return None
