"""What a job finds of the `files` it was given, as root and as another user, in a real container."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodelab import Lab

from orch import images
from orch.runner.events import FilesProgress, LogLine, Notice, Recorder
from orch.runner.runs import lifecycle
from orch.runner.runs.lifecycle import RunnerContext
from orch.spec.models import Task
from orch.spec.state import NodeState

LOOK = (
    "cd /tmp/w && find . ! -name . -exec stat -c '%n %a' {} + | sort; cat closed/in secret code/run; "
    "code/run; stat -c '%n %a' /tmp/single; test -O secret && echo mine"
)


@pytest.mark.parametrize("user", [None, "65534:65534"])
def test_modes_are_kept_and_a_job_of_any_user_reads_what_is_its(
    lab: Lab, pair: tuple[NodeState, NodeState], place: RunnerContext, tmp_path: Path, user: str | None
) -> None:
    folder = tmp_path / "w"
    for name, text, mode in (
        ("secret", "hush\n", 0o600),
        ("code/run", "#!/bin/sh\necho ran\n", 0o750),
        ("code/plain", "x", 0o644),
        ("closed/in", "within\n", 0o644),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    (folder / "closed").chmod(0o700)
    (folder / "code" / "link").symlink_to("plain")
    (tmp_path / "single").write_text("hush")
    (tmp_path / "single").chmod(0o600)
    task = {
        "name": "files",
        "commands": [LOOK],
        "files": ["w:/tmp/w", "single:/tmp/single"],
        **({"user": user} if user else {}),
    }
    row = lifecycle.submit(
        place, Task.model_validate(task), lab.fleet(*pair), image=images.resolve("orch/mpi"), base=tmp_path
    )
    row = lifecycle.drive(place, row)
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    lines = [event.text for event in recorder.events if isinstance(event, LogLine)]
    assert row.status == "done", lines
    assert lines == [
        *("./closed 700", "./closed/in 600", "./code 755", "./code/link 777", "./code/plain 644"),
        *("./code/run 700", "./secret 600", "within", "hush", "#!/bin/sh", "echo ran", "ran"),
        *("/tmp/single 600", "mine"),
    ]
    notices = [event.text for event in recorder.events if isinstance(event, Notice)]
    assert "packed 5 files, 36 bytes" in notices
    sent = [event for event in recorder.events if isinstance(event, FilesProgress)]
    assert sent[0].done_bytes == 0 < sent[0].total_bytes
    assert sent[-1].finished
    assert all(event.done_bytes <= event.total_bytes for event in sent)
