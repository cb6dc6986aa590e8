"""The grammar of the shell, by tree-sitter: nodes of a text, and what its words say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orch.spec.grammar.values import shown

if TYPE_CHECKING:
    from tree_sitter import Node


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


KNOWN = _set(
    """program command command_name word number string string_content raw_string concatenation expansion
    regex simple_expansion variable_name special_variable_name command_substitution variable_assignment
    declaration_command unset_command test_command binary_expression unary_expression
    parenthesized_expression negation_expression test_operator pipeline list subshell compound_statement
    redirected_statement file_redirect file_descriptor heredoc_redirect heredoc_start heredoc_body
    heredoc_content heredoc_end for_statement while_statement do_group if_statement elif_clause
    else_clause case_statement case_item extglob_pattern negated_command function_definition comment
    arithmetic_expansion postfix_expression"""
)
OPERATORS = _set("""${ } # :- - := = :+ + :? ? % %% ##""")


def uncertain(node: Node) -> str | None:
    """Return a node's text when it is not certain that every shell reads it as the grammar does."""
    first = node.children[0].type if node.children else ""
    wrong = node.type == "ERROR" or node.is_missing or (node.is_named and node.type not in KNOWN)
    if node.type in ("test_command", "compound_statement"):
        wrong |= first in ("[[", "((")
    elif node.type == "for_statement":
        wrong |= first == "select"
    elif node.type == "extglob_pattern":
        wrong |= b"(" in (node.text or b"")
    elif node.type == "file_redirect":
        wrong |= len(node.children_by_field_name("destination")) > 1
    elif node.type == "heredoc_redirect":
        wrong |= bool(node.children_by_field_name("argument"))
    elif node.type == "expansion":
        wrong |= any(not each.is_named and each.type not in OPERATORS for each in node.children)
    return shown(text_of(node)[:60]) if wrong else None


def writes_file(node: Node) -> bool:
    """Return True if a redirection writes a file."""
    return node.type == "file_redirect" and any(each.type.startswith((">", "&>")) for each in node.children)


def parsed(source: bytes) -> Node:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language())).parse(source).root_node


def all_nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all below it, in the order of the text."""
    left = [node]
    while left:
        yield (found := left.pop())
        left += reversed(found.children)


def text_of(node: Any) -> str:
    return "" if node is None else (node.text or b"").decode("utf-8", "surrogatepass")


def argument_nodes(node: Node) -> list[Node]:
    """Return the words of a command as nodes, its name first."""
    name = node.child_by_field_name("name")
    if name is None:
        return []
    return [name, *node.children_by_field_name("argument")]


def literal_of(node: Node) -> str | None:
    """Return what a word says; None when the shell decides, as by a variable or a pattern."""
    text = text_of(node)
    if node.type == "command_name":
        return literal_of(node.children[0]) if len(node.children) == 1 else None
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string":
        inner = [each for each in node.children if each.is_named and each.type != "string_content"]
        return None if inner else re.sub(r"\\([\"\\$`])|\\\n", lambda found: found[1] or "", text[1:-1])
    if node.type == "concatenation":
        parts = [literal_of(each) for each in node.children]
        return None if None in parts else "".join(each or "" for each in parts)
    if node.type in ("word", "number") or not node.is_named:
        plain = re.sub(r"\\\n", "", text)
        if re.search(r"(?<!\\)[*?\[{~$]", plain):
            return None
        return re.sub(r"\\(.)", r"\1", plain, flags=re.DOTALL)
    return None


def fixed_text(node: Node) -> str:
    """Return the text of a word that is written out in it, without what the shell expands."""
    if node.type in ("expansion", "simple_expansion", "command_substitution", "arithmetic_expansion"):
        return ""
    if node.type == "string":
        out, at = "", node.start_byte + 1
        base, raw = node.start_byte, node.text or b""
        for each in node.children:
            if each.is_named and each.type != "string_content":
                out += raw[at - base : each.start_byte - base].decode("utf-8", "replace")
                at = each.end_byte
        return out + raw[at - base : -1].decode("utf-8", "replace")
    if node.children:
        return "".join(fixed_text(each) for each in node.children)
    return literal_of(node) or text_of(node)
