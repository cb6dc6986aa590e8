"""Where values of parameters may get to in a text for a shell: variables, files, and what commands answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orch.runbooks.readers import COPIERS, Word, program
from orch.runbooks.syntax import all_nodes, argument_nodes, fixed_text, literal_of, text_of, writes_file
from orch.runbooks.words import variable

if TYPE_CHECKING:
    from tree_sitter import Node


_GIVEN = re.compile(rf"[1-9][0-9]*|[@*]|{variable('')}.*")


@dataclass
class Flow:
    """The variables and files that may hold a value. `any_file`: one whose name the shell decides, too."""

    variables: set[str] = field(default_factory=set[str])
    files: set[str] = field(default_factory=set[str])
    any_file: bool = False

    def spread(self, nodes: list[Node]) -> None:
        """Find the variables and files that may hold a value."""
        while True:
            before = (len(self.variables), len(self.files), self.any_file)
            for node in nodes:
                self._spread_from(node)
            if before == (len(self.variables), len(self.files), self.any_file):
                return

    def _spread_from(self, node: Node) -> None:
        if node.type == "variable_assignment":
            if self.tainted(node.child_by_field_name("value")):
                self.variables.add(text_of(node.child_by_field_name("name")))
        elif node.type == "for_statement":
            values = node.children_by_field_name("value")
            if not values or any(map(self.tainted, values)):
                self.variables.add(text_of(node.child_by_field_name("variable")))
        elif node.type == "expansion" and any(each.type in (":=", "=") for each in node.children):
            if any(self.tainted(each) for each in node.named_children[1:]):
                self.variables.add(text_of(node.named_children[0]))
        elif node.type == "command" and (words := self.words(node)):
            if program(words[0]) in ("read", "getopts"):
                self.variables |= {each.literal for each in words[1:] if each.literal} | {"REPLY", "OPTARG"}
            elif program(words[0]) in COPIERS and self._holds_value(node):
                self._writes(words[1:])
        elif writes_file(node) and self._holds_value(node):
            self._writes(tuple(map(self.word, node.children_by_field_name("destination"))))

    def _writes(self, words: tuple[Word, ...]) -> None:
        for each in words:
            if each.literal is None:
                self.any_file = True
                continue
            # A file may stand in the word of its option: `--output=FILE`, `-oFILE`.
            name = re.sub(r"^(--[^=]*=?|-[^-]?)", "", each.literal)
            if not name.startswith("/dev/") and name and not name.isdigit():
                self.files.add(name.rpartition("/")[2])

    def _holds_value(self, node: Node) -> bool:
        """Return True if the statement of the text around a node has a value anywhere."""
        while node.parent is not None and node.parent.parent is not None:
            node = node.parent
        return self.tainted(node)

    def tainted(self, node: Node | None) -> bool:
        """Return True if a node's text may contain a value: from a reference, a variable, a file, or a
        command's output."""
        answers = (each.type == "command_substitution" for each in all_nodes(node)) if node else ()
        return any(answers) or self.has_value(node)

    def has_value(self, node: Node | None) -> bool:
        """Return True if a node's text may contain a value, ignoring output of commands that have none."""
        return node is not None and any(map(self._is_value, all_nodes(node)))

    def _is_value(self, node: Node) -> bool:
        if node.type in ("expansion", "simple_expansion"):
            named = [each for each in node.named_children if each.type.endswith("variable_name")]
            name = text_of(named[0]) if named else "@"
            return bool(name in self.variables or _GIVEN.fullmatch(name))
        if node.type in ("word", "raw_string", "string"):
            return (literal_of(node) or "/").rpartition("/")[2] in self.files
        return False

    def calculates(self, node: Node) -> bool:
        """Return True if a value may be in arithmetic, which names variables without `$`."""
        names = (text_of(each) for each in all_nodes(node) if each.type == "variable_name")
        return self.tainted(node) or any(name in self.variables or _GIVEN.fullmatch(name) for name in names)

    def word(self, node: Node) -> Word:
        return Word(literal_of(node), fixed_text(node), self.tainted(node))

    def words(self, node: Node) -> tuple[Word, ...]:
        """Return the words of a command, its name first."""
        return tuple(self.word(each) for each in argument_nodes(node))
