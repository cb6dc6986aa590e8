"""Time to read a file grows with its size and no faster, however it is built."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orch.spec.document.text import MAX_BYTES
from orch.spec.loader.load import load_paths

QUARTER = MAX_BYTES // 4
TASK = "type: task\nimage: x\n"


def filled(head: str, line: str) -> str:
    """`head` and lines up to a quarter of what a file may hold, `{}` in them counted up."""
    lines = [head]
    size = len(head)
    for number in range(QUARTER):
        text = line.replace("{}", str(number))
        size += len(text)
        if size > QUARTER:
            break
        lines.append(text)
    return "".join(lines)


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (TASK, "propertty{}: x\n"),
        (TASK, "image: y\n"),
        (TASK + "env:\n", "- 1A{}\n"),
        (TASK + "commands:\n", "- a{}: b\n"),
        (TASK + "commands:\n", "- ${{ foo.{} }}\n"),
        (TASK + "files:\n", "- {local_pat: x{}}\n"),
        ("", "---\ntype: task\nnodes: 2\ntorchrun: x\n---\ntype: fleet\nname: f{}\nnodes: 2\n"),
        ("", "---\ntype: fleet\nname: f\nnodes: 1x\n"),
        ("", "---\ntype: fleet\nname: f{}\nssh_config: {hosts: ['a[1-4000]', 'b{}']}\n"),
        ("type: fleet\nssh_config:\n  hosts:\n", "  - n{}[1-4000]\n"),
        ("", "---\ntype: task\nimage: x\narray: 0-9999\n"),
        ("", "---\ntype: task\nname: r{}\nimage: x\ndepends_on: [r1, r{}, s{}]\n"),
        (TASK + "groups:\n", "- {commands: ['${{ groups[{}].nodes[0].IP_ADDRESS }}']}\n"),
        (TASK + "ports:\n", "- {}\n"),
        (TASK + "env: ", "["),
        (TASK + "env: ", "{a: "),
        (TASK + "env:\n  A: ", "x "),
        ("", "&a [*a, "),
        ("? ", "- "),
    ],
)
def test_a_hostile_file_is_read_in_seconds(tmp_path: Path, head: str, line: str) -> None:
    path = tmp_path / "hostile.yml"
    path.write_text(filled(head, line))
    began = time.process_time()  # of this process alone: others may be at work
    load_paths([path], environ={})
    assert time.process_time() - began < 6


def test_a_long_chain_of_runs_is_followed_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "chain.yml"
    documents = [
        f"type: task\nname: r{number}\nimage: x\ndepends_on: r{number + 1}\n" for number in range(10_000)
    ]
    path.write_text("---\n".join([*documents, "type: task\nname: r10000\nimage: x\ndepends_on: r0\n"]))
    began = time.process_time()
    (found,) = load_paths([path], environ={}).diagnostics
    assert found.code == "ORCH175"
    assert time.process_time() - began < 20


def test_a_large_honest_file_is_no_bomb(tmp_path: Path) -> None:
    path = tmp_path / "large.yml"
    path.write_text(filled(TASK + "env:\n", "  - VARIABLE_{}=some value of it\n"))
    assert not load_paths([path]).diagnostics
