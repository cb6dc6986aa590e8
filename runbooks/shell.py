"""Text for a shell in which references to parameters are variables, by the grammar of the shell.

A value never becomes part of the text. But a command may read its words, or its input, as commands again
(`eval`, `sh -c`, `trap`, a shell behind a pipe). So in a text with references every command is looked at, and
what may get a value and reads commands is refused, as is what the grammar does not tell for certain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from orch.runbooks import readers
from orch.runbooks.flow import Flow
from orch.runbooks.readers import Word as Said
from orch.runbooks.readers import program
from orch.runbooks.syntax import (
    all_nodes,
    argument_nodes,
    literal_of,
    parsed,
    text_of,
    uncertain,
    writes_file,
)
from orch.runbooks.words import REFERENCE, Word, parameter_name, variable
from orch.spec.grammar.values import Problem

if TYPE_CHECKING:
    from tree_sitter import Node

_VARIABLE = variable("")
_HOST = "write a `shell` step with `host=`"
_INSTEAD = "give it to a program by a file, or let the program read its environment"


_EXPANDED = (
    "expansion",
    "simple_expansion",
    "command_substitution",
    "arithmetic_expansion",
    "process_substitution",
)


@dataclass(frozen=True)
class Script:
    """`text`: for a shell; `names`: of the parameters that it reads; `words`: those that begin with a value,
    and must not begin with a dash."""

    text: str
    names: tuple[str, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class _Reference:
    """Its parameter, and its place in the text of the runbook."""

    name: str
    at: tuple[int, int]


@lru_cache(maxsize=256)
def shell_text(text: str) -> Script:
    """Return text for a shell in which references are variables.

    Raises Problem, whose `at` is the place in the text, where the shell would not expand a reference, or
    something could read its value as commands.
    """
    source, references, places = b"", dict[int, _Reference](), list[tuple[int, int]]()
    at = 0
    for match in _MARKS.finditer(text):
        source += text[at : match.start()].encode("utf-8", "surrogatepass")
        places.append((len(source), match.start()))
        at = match.end()
        if match[0] == "$${{":
            source += b"${{"
        elif (found := REFERENCE.match(text, match.start())) is None:
            hint = "write `$${{` for these characters themselves"
            raise Problem("ORCH134", "`${{` has no closing `}}`", hint=hint, at=(match.start(), at))
        else:
            name, at = parameter_name(found[1]), found.end()
            references[len(source)] = _Reference(name, found.span())
            source += f"${{{variable(name)}}}".encode()
        places.append((len(source), at))
    source += text[at:].encode("utf-8", "surrogatepass")
    if not references:
        return Script(source.decode("utf-8", "surrogatepass"))
    checked = _Text(source, references, places)
    checked.check()
    return checked.script()


_MARKS = re.compile(r"\$\$\{\{|\$\{\{(?:(?!\}\}).)*?(?=\}\})|\$\{\{", re.DOTALL)


@dataclass
class _Text:
    """A text in which references are variables. `references`: by the byte at which each begins.

    `places`: bytes of the text and characters of the runbook that are the same place. `within`: the place in
    the runbook of a text that stands in another one, as that of `sh -c`.
    """

    source: bytes
    references: Mapping[int, _Reference]
    places: list[tuple[int, int]]
    within: tuple[int, int] | None = None
    flow: Flow = field(default_factory=Flow)
    guarded: list[Word] = field(default_factory=list[Word])
    quoted: set[int] = field(default_factory=set[int])

    def check(self) -> None:
        """Raise Problem for the first thing that is not safe."""
        self.root = parsed(self.source)
        self.nodes = list(all_nodes(self.root))
        self._require_known()
        defined = (each for each in self.nodes if each.type == "function_definition")
        functions = {text_of(each.child_by_field_name("name")) for each in defined}
        for name in functions & (readers.TEXT | readers.PLAIN | readers.READERS | readers.SHELLS | {"orch"}):
            self._refuse(
                self.root, f"a function has the name of the command `{name}`", "give it another name"
            )
        for each in self.references:
            self._place(each)
        self.flow.spread(self.nodes)
        for node in self.nodes:
            self._look_at(node)
        # A loop and `read` set variables, too.
        for name in filter(readers.is_special, sorted(self.flow.variables)):
            why = f"the variable `{name}` decides which commands run, or how"
            self._refuse(self.root, why, "give the variable another name")

    def script(self) -> Script:
        """Return the text with quotes around what stands without."""
        out, at = b"", 0
        for start, reference in sorted(self.references.items()):
            end = start + len(f"${{{variable(reference.name)}}}")
            quote = b'"' if start in self.quoted else b""
            out += self.source[at:start] + quote + self.source[start:end] + quote
            at = end
        names = dict.fromkeys(each.name for _, each in sorted(self.references.items()))
        whole = (out + self.source[at:]).decode("utf-8", "surrogatepass")
        return Script(whole, tuple(names), tuple(self.guarded))

    # Places

    def _require_known(self) -> None:
        for node in self.nodes:
            if (what := uncertain(node)) is not None:
                hint = "in a text with values, write what every POSIX shell reads in the same way"
                self._refuse(node, f"it is not certain how a shell reads {what}", hint)
        if self.root.has_error:
            self._refuse(
                self.root, "it is not certain how a shell reads this text", "write it in simpler parts"
            )

    def _place(self, start: int) -> None:
        """Require that the shell expands a reference where it stands, and note whether it needs quotes."""
        node = next((n for n in self.nodes if n.start_byte == start and n.type == "expansion"), None)
        if node is None:
            around = [n for n in self.nodes if n.start_byte <= start < n.end_byte]
            if around[-1].type == "comment":
                return
            self._refuse(start, "the shell does not expand what stands in single quotes", "use double quotes")
            return
        inner, at = True, node.parent
        while at is not None:
            if at.type in ("string", "heredoc_body", "command_substitution") and inner:
                inner = False
                if at.type == "command_substitution":
                    self.quoted.add(start)
            if at.type == "expansion":
                self._refuse(node, "quotes within `${ }` differ between shells", "set a variable to it first")
            if at.type == "arithmetic_expansion":
                self._refuse(node, "a shell may run what it finds in arithmetic", "calculate elsewhere")
            if at.type == "command_substitution" and at.children[0].type == "`":
                self._refuse(node, "backticks have quotes of their own", "write `$( … )`")
            if writes_file(at):
                self._refuse(
                    node, "the value would name a file that is overwritten", "write `tee -- ${{ … }}`"
                )
            at = at.parent
        if inner:
            self.quoted.add(start)

    # What is refused

    def _look_at(self, node: Node) -> None:
        if node.type == "command" and node.child_by_field_name("name") is not None:
            self._command(node, self.flow.words(node), argument_nodes(node))
        elif node.type in ("declaration_command", "unset_command"):
            self._names(node)
        elif node.type == "test_command":
            operators = {text_of(each) for each in all_nodes(node) if each.type in ("test_operator", "=~")}
            if operators & {"-v", "-R", "=~"} and self.flow.tainted(node):
                self._refuse(node, "this test may run what is in the value", "write another test")
        elif node.type == "arithmetic_expansion" and self.flow.calculates(node):
            self._refuse(node, "a shell may run what it finds in arithmetic", "calculate elsewhere")
        elif node.type == "variable_assignment":
            name = text_of(node.child_by_field_name("name"))
            value = node.child_by_field_name("value")
            if readers.is_special(name) and self.flow.tainted(value):
                why = f"the variable `{name}` decides which commands run, or how"
                self._refuse(value or node, why, "give the variable another name")
            if value is not None:
                self._guard(value)
        elif node.type == "for_statement":
            for each in node.children_by_field_name("value"):
                self._guard(each)
        elif node.type in ("pipeline", "redirected_statement", "heredoc_redirect"):
            self._input(node)

    def _names(self, node: Node) -> None:
        """Look at a builtin whose words are names of variables."""
        name = node.children[0].type
        for each in node.children[1:]:
            dashed = each.type == "word" and text_of(each).startswith("-")
            if (
                name in ("declare", "typeset")
                or dashed
                or (each.type != "variable_assignment" and self.flow.tainted(each))
            ):
                hint = "write `NAME=value`, and then `export NAME`"
                self._refuse(each, f"`{name}` may evaluate its words", hint)

    def _command(self, node: Node, words: tuple[Said, ...], nodes: list[Node]) -> None:
        found = readers.unwrapped(words)
        if found == ():
            return
        if found is None or found[0].literal is None:
            what = "it cannot be told which command this is"
            self._refuse(node, what, "write the name of the command, without variables and patterns")
            return
        at = len(words) - len(found)
        for number in range(1, at):
            self._guard(nodes[number])
        name, own = program(found[0]), nodes[at:]
        self._require_file(found[0], own[0])
        if name in readers.SHELLS:
            self._shell(found, own)
        elif name in ("eval", "trap", ".", "source"):
            self._builtin(name, found, own)
        else:
            self._plain(found, own)

    def _require_file(self, word: Said, node: Node) -> None:
        """Refuse a file that is run, when a value may be in it."""
        if word.tainted or ("/" in (word.literal or "/") and self.flow.any_file):
            self._refuse(node, "what is run here may hold the value", _INSTEAD)

    def _shell(self, words: tuple[Said, ...], nodes: list[Node]) -> None:
        at, code = 1, False
        while at < len(words) and (literal := words[at].literal) is not None and literal[:1] in ("-", "+"):
            at += 1
            if literal == "--":
                break
            if literal.startswith("--") and literal not in ("--norc", "--noprofile", "--posix", "--login"):
                self._refuse(nodes[at - 1], "this option may name a file of commands", "leave it out")
            code |= "c" in literal and not literal.startswith("--")
            at += literal.endswith("o") and not literal.startswith("--")
            if "s" in literal and not literal.startswith("--"):
                at = len(words)
        if at >= len(words):
            hint = "write the commands as text: `sh -c '…' sh ${{ … }}`"
            self._refuse(nodes[0], "a shell reads commands from its input here", hint)
        elif code:
            self._inner(words[at], nodes[at])
        elif words[at].literal is None or words[at].literal in ("-", "/dev/stdin", "/proc/self/fd/0"):
            hint = "pass it as an argument: `sh -c '… \"$1\" …' sh ${{ … }}`"
            self._refuse(nodes[at], "another shell would read the value as commands", hint)
        else:
            self._require_file(Said(f"./{words[at].literal}", "", words[at].tainted), nodes[at])

    def _builtin(self, name: str, words: tuple[Said, ...], nodes: list[Node]) -> None:
        operands = [
            (word, node) for word, node in zip(words[1:], nodes[1:], strict=True) if word.literal != "--"
        ]
        for word, node in operands:
            if word.tainted or (word.literal is None and name != "."):
                self._refuse(node, f"`{name}` would read the value as commands", f"leave `{name}` out")
        if name == "eval" and operands:
            said = " ".join(word.literal or "" for word, _ in operands)
            self._inner(Said(said, said, tainted=False), operands[0][1])
        elif name == "trap" and len(operands) > 1:
            self._inner(*operands[0])
        elif name in (".", "source") and operands:
            self._require_file(Said(f"./{operands[0][0].literal}", "", tainted=False), operands[0][1])

    def _inner(self, word: Said, node: Node) -> None:
        """Look at text that is a text of a shell itself."""
        if word.literal is None or word.tainted:
            hint = "pass it as an argument: `sh -c '… \"$1\" …' sh ${{ … }}`"
            self._refuse(node, "another shell would read the value as commands", hint)
            return
        source = word.literal.encode("utf-8", "surrogatepass")
        _Text(source, {}, [], self._span(node), self.flow).check()

    def _plain(self, words: tuple[Said, ...], nodes: list[Node]) -> None:
        """Look at a command that is no shell and no builtin which reads commands."""
        name, end = program(words[0]), readers.options_end(words)
        if name in readers.FORBIDDEN:
            self._refuse(nodes[0], f"`{name}` may evaluate its words", f"leave `{name}` out")
        if name == "kubectl" and readers.turned(words) == "exec" and end < len(words):
            self._command(nodes[0], words[end:], nodes[end:])
            words = tuple(
                Said("", "", tainted=False) if each.literal == "exec" else each for each in words[:end]
            )
        if script := readers.script_at(words):
            self._require_file(Said(f"./{words[script].literal}", "", tainted=False), nodes[script])
        for at in range(1, len(words)):
            word, node = words[at], nodes[at]
            if name not in readers.TEXT and _VARIABLE in word.fixed:
                self._refuse(node, f"`{name}` may read the value as commands", _INSTEAD)
            if not word.tainted:
                continue
            if self._is_split(node):
                self._refuse(node, "without quotes the value would be several words", 'write `"$x"`')
            why = readers.wrong_word(words, at)
            if why and not (readers.is_name(words, at) and self._is_given(node)):
                self._refuse(node, why, _HOST if name in ("ssh", "orch", "scp", "rsync") else _INSTEAD)
            if at < end:
                self._guard(node)

    def _input(self, node: Node) -> None:
        """Refuse commands that may read commands from an input that has a value."""
        if node.type == "pipeline":
            parts = [each for each in node.named_children if each.type != "comment"]
            # `cat << END | sh` has its pipe within the redirection, before the text.
            fed = (
                node.parent is not None
                and node.parent.type == "heredoc_redirect"
                and node.parent.parent is not None
            )
            dirty = fed and self.flow.tainted(node.parent.parent)  # type: ignore[union-attr]
            for each in parts:
                if dirty:
                    self._require_reading(each)
                dirty = dirty or self.flow.tainted(each)
            return
        if node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            for each in node.children_by_field_name("redirect"):
                says = [n for n in each.children if n.type == "heredoc_body"]
                if (
                    each.type == "file_redirect"
                    and each.children[0].type != ">"
                    and any(n.type == "<" for n in each.children)
                ):
                    says = each.children_by_field_name("destination")
                if body is not None and any(map(self.flow.tainted, says)):
                    self._require_reading(body)

    def _require_reading(self, node: Node) -> None:
        for each in all_nodes(node):
            if each.type != "command" or each.child_by_field_name("name") is None:
                continue
            words = readers.unwrapped(self.flow.words(each))
            if words is None or (words and not readers.may_read_input(words)):
                name = (program(words[0]) if words else "") or "this"
                self._refuse(
                    each, f"`{name}` may read its input as commands, and the value is in it", _INSTEAD
                )

    def _is_split(self, node: Node) -> bool:
        """Return True if a shell splits a value in a word: a variable or an answer without quotes around
        it."""
        parts = node.children if node.type == "concatenation" else [node]
        return any(
            each.type in ("expansion", "simple_expansion", "command_substitution")
            and each.start_byte not in self.quoted
            and self.flow.has_value(each)
            for each in parts
        )

    def _is_given(self, node: Node) -> bool:
        """Return True if the shell expands nothing in a word but references, whose values are checked."""
        return all(each.start_byte in self.references for each in all_nodes(node) if each.type in _EXPANDED)

    def _guard(self, node: Node) -> None:
        """Note a word that begins with a value, which must not make it an option by a dash."""
        parts = [""]
        for each in node.children if node.type in ("concatenation", "string") else [node]:
            inner = [n for n in each.children if n.is_named] if each.type == "string" else [each]
            for part in inner if each.type == "string" else [each]:
                reference = self.references.get(part.start_byte) if part.type == "expansion" else None
                if reference is not None:
                    parts += [reference.name, ""]
                elif part.is_named:
                    parts[-1] += literal_of(part) or text_of(part)
        if len(parts) > 1 and not parts[0]:
            self.guarded.append(Word(tuple(parts)))

    def _span(self, node: Node | int) -> tuple[int, int]:
        """The place of a node in the text of the runbook."""
        if self.within is not None:
            return self.within
        start, end = (node, node + 1) if isinstance(node, int) else (node.start_byte, node.end_byte)
        inside = sorted(each for each in self.references if start <= each < end)
        if inside:
            return self.references[inside[0]].at
        return self._character(start), max(self._character(end), self._character(start) + 1)

    def _character(self, byte: int) -> int:
        before = [(at, character) for at, character in self.places if at <= byte]
        at, character = before[-1] if before else (0, 0)
        return character + len(self.source[at:byte].decode("utf-8", "replace"))

    def _refuse(self, node: Node | int, why: str, hint: str) -> None:
        start, end = (node, node + 1) if isinstance(node, int) else (node.start_byte, node.end_byte)
        inside = sorted(each for each in self.references if start <= each < end)
        what = (
            f"`{self.references[inside[0]].name}` stands where it is not safe"
            if inside
            else "this is not safe beside values"
        )
        raise Problem("ORCH415", f"{what}: {why}", hint=hint, at=self._span(node))
