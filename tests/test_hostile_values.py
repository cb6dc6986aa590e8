"""Texts that shells take amiss, in every property and every option: refused, or a word where they arrive.

What is sent elsewhere for them is collected, read by a shell, and run where commands only write down how they
were called.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from jinja2 import Template
from kit import acting
from kit.acting import Act
from kit.clouds import cloudconfig
from kit.leaves import Leaf, documents_read, leaves
from kit.nodes.sandbox import Sandbox
from test_every_property import BASES, merged

from orch.spec.errors import OrchError
from orch.spec.loader.load import Document, load_paths
from orch.spec.rules.unsupported import not_acted_on

HOSTILE = (
    "x'; canary; '\"; canary; \"$(canary)`canary`; canary #",
    "x'; canary; '",
    'x"; canary; "',
    "$(canary)",
    "`canary`",
    "x; canary #",
    "x && canary || canary & canary | canary > canary",
    "x${IFS}canary",
    "/canary/$(canary)/../canary",
    "x:$(canary)",
    "x=`canary`",
    "{{ canary }}{% canary %}",
    "x@@HOST_KEY@@ canary",
    "x canary %h%n",
)
# What is written there is a script of the user's own.
SCRIPTS = ("commands", "run")
KINDS: dict[str, tuple[str, Mapping[str, Any], Act]] = {
    "tasks": ("task", {"image": "x", "nodes": "2"}, acting.run_on("aws")),
    "projects": ("project", {}, acting.use_project),
    **{f"fleets of {name}": ("fleet", BASES[name], acting.act_on(name)) for name in BASES},
}


@contextmanager
def rendered() -> Iterator[list[tuple[str, str]]]:
    """Names and texts of all templates that are filled within."""
    found = list[tuple[str, str]]()
    plain = Template.render

    def told(self: Template, *args: Any, **values: Any) -> str:
        text = plain(self, *args, **values)
        found.append((str(self.name), text))
        return text

    with patch.object(Template, "render", told):
        yield found


def accepted(folder: Path, leaf: Leaf, base: Mapping[str, Any], text: str) -> Document | None:
    """The first document that holds the text at a leaf and could be launched."""
    for _, loaded in documents_read(folder, leaf, text, lambda document: merged(document, base)):
        if (
            not loaded.failed
            and loaded.documents
            and not any(not_acted_on(each.draft) for each in loaded.documents)
        ):
            return loaded.documents[0]
    return None


class Examined:
    """Texts that were looked at; each one once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = set[str]()

    def look(self, name: str, text: str) -> None:
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
        if "canary" not in text or digest in self._seen:
            return
        self._seen.add(digest)
        if name.endswith(".yml.j2"):
            cloudconfig.config(text)
            return
        shell = "bash" if text.startswith("#!/bin/bash") else "sh"
        script = self._folder / "script"
        script.unlink(missing_ok=True)
        script.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        read = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, ""), (name, read.stderr, text)
        sandbox = Sandbox.made(self._folder / digest)
        sandbox.run(text, shell)
        called = {call[0] for call in sandbox.calls()}
        assert "canary" not in called, (name, text)

    def __len__(self) -> int:
        return len(self._seen)


def act_on(act: Act, document: Document, folder: Path, examined: Examined) -> None:
    told = list[str]()
    with rendered() as texts, suppress(OrchError):
        for _ in act(document, folder, told):
            pass
    for name, text in (*texts, *(("a command", text) for text in told)):
        examined.look(name, text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_text_is_refused_or_a_word_where_it_arrives(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, base, act = KINDS[kind]
    (tmp_path / "bin").mkdir()
    canary = tmp_path / "bin/canary"
    canary.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    canary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{canary.parent}:{os.environ['PATH']}")
    here = tmp_path / "here"
    here.mkdir()
    examined = Examined(tmp_path)
    cases = kept = 0
    for leaf in leaves(of):
        # What stands in a project of `projects` is refused with it, and stands in orch.yml itself too.
        if leaf.steps[-1].name in SCRIPTS or leaf.path[0] == "projects":
            continue
        for text in HOSTILE:
            cases += 1
            document = accepted(here, leaf, base, text)
            if document is not None:
                kept += 1
                act_on(act, document, here, examined)
                if text == HOSTILE[0]:
                    break  # it holds what the others do
    assert not (tmp_path / "ran").exists()
    print(f"{kind}: {cases} cases, {kept} accepted, {len(examined)} texts of shells that hold one")
    assert cases > 500
    assert kept > 5


def test_variables_and_arguments_of_the_command_line_are_words_too(tmp_path: Path) -> None:
    path = tmp_path / "task.yml"
    path.write_text("type: task\nimage: x\nenv: [B]\ncommands: ['echo ${{ run.args }}']\n")
    examined = Examined(tmp_path)
    for text in (*HOSTILE, "x\ncanary\n", "\\", "-n"):
        act = acting.run_on("aws", arguments=(text, text), variables={"A": text, "B": text})
        act_on(act, load_paths([path], environ={}).documents[0], tmp_path, examined)
    # The job's script and the variables, for each text that holds the word.
    assert len(examined) == 2 * (len(HOSTILE) + 1)


@pytest.mark.parametrize("text", ["echo $(canary)", "echo 'x'; canary; ''", "#!/bin/bash\necho `canary`"])
def test_what_a_text_would_run_is_seen(text: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="canary"):
        Examined(tmp_path).look("a command", text)
