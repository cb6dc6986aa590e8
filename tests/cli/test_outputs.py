"""What `orch preview --out` writes where: pipes and devices get the text, and no source is lost."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from kit.support import Folder

from orch.cli.errors import UsageError
from orch.cli.output.files import print_or_write

FLEET = "type: fleet\nname: lab\nbackend: local\nnodes: 1\n"


def test_a_file_gets_all_of_the_text_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "comment.md"
    file.write_text("the one before")
    print_or_write("new\n", str(file))
    assert file.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["comment.md"]


def test_a_pipe_gets_the_text_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    print_or_write("plan\n", str(pipe))
    reader.join()
    assert got == ["plan\n"]
    assert pipe.is_fifo()


def test_a_name_of_standard_output_is_not_replaced(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    before = os.readlink("/dev/stdout")
    print_or_write("plan\n", "/dev/stdout")
    assert capfdbinary.readouterr().out == b"plan\n"
    assert os.readlink("/dev/stdout") == before


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / "comment.md").symlink_to(other)
    print_or_write("plan\n", str(tmp_path / "comment.md"))
    assert other.read_text() == "of somebody else"
    assert (tmp_path / "comment.md").read_text() == "plan\n"


@pytest.mark.parametrize("name", ["", ".", "folder", "missing/plan.json", f"{'x' * 300}.md"])
def test_what_is_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        print_or_write("plan\n", name)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_file_s_name_that_is_no_utf_8_stands_in_json_as_an_escape(tmp_path: Path) -> None:
    text = json.dumps({"file": os.fsdecode(b"bad\xff.yml")}, ensure_ascii=False)
    print_or_write(text, str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_bytes()) == {"file": os.fsdecode(b"bad\xff.yml")}


@pytest.mark.parametrize("out", ["lab.yml", "./lab.yml", "orch.yml", "broken.yml"])
@pytest.mark.parametrize("more", [(), ("--untrusted",)])
def test_no_file_that_is_previewed_is_overwritten(folder: Folder, out: str, more: tuple[str, ...]) -> None:
    written = {"lab.yml": FLEET, "orch.yml": "project: lab\n", "broken.yml": "type: fleet\nname: [\n"}
    for name, text in written.items():
        (folder.path / name).write_text(text)
    said = folder.orch("preview", ".", "--markdown", "--out", out, *more)
    assert said.code == 2
    assert f"{out}: error: this file is one of those that are previewed" in said.err
    assert {name: (folder.path / name).read_text() for name in written} == written


def test_two_outputs_go_to_two_files(folder: Folder) -> None:
    (folder.path / "lab.yml").write_text(FLEET)
    words = ["--out", "plan.json", "--findings-format", "sarif", "--findings-out", "./plan.json"]
    said = folder.orch("preview", "lab.yml", *words)
    assert said.code == 2
    assert "./plan.json: error: two outputs go to this file" in said.err
    assert not (folder.path / "plan.json").exists()
