"""What a job finds of the `files` it was given, as root and as another user, in a real container."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from kit.nodes.nodelab import Lab, wait_until

from orch import images
from orch.runner.access.copying import PathMissing, RankSide, fetch, push
from orch.runner.events import FilesProgress, LogLine, Notice, Recorder
from orch.runner.launch.submission import Submission
from orch.runner.ledger.plans import plan_of
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
        ("code/plain", "x" if user else "y", 0o644),  # content that the nodes do not have
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
        place,
        Submission(
            Task.model_validate(task), lab.fleet(*pair), image=images.resolve("orch/mpi"), base=tmp_path
        ),
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


def test_a_job_changes_nothing_that_the_next_one_gets_and_its_outputs_come_back(
    lab: Lab, pair: tuple[NodeState, NodeState], place: RunnerContext, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("mine\n")
    for words in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"),
    ):
        subprocess.run(["git", *words], cwd=code, check=True)
    (code / "new.py").write_text("new\n")
    task = Task.model_validate(
        {
            "name": "code",
            "repos": ["code"],
            "files": ["code/train.py:~/alone.py"],
            "commands": [
                "pwd; echo $DSTACK_REPO_DIR; cat train.py new.py ~/alone.py; ls -d .git",
                "(echo theirs > /run/orch/files/0/open/train.py) 2>/dev/null || echo refused",
                "echo theirs > train.py; mkdir -p /out/deep; printf 'a\\000b' > /out/deep/model.bin",
                "ln -s deep /out/link; exit 3",
            ],
            "outputs": ["/out", {"path": "/workflow/train.py", "to": "results"}, "/none"],
        }
    )
    recorder = place.processor
    assert isinstance(recorder, Recorder)
    for attempt in range(2):
        recorder.events.clear()
        row = lifecycle.submit(
            place, Submission(task, lab.fleet(*pair), image=images.resolve("orch/mpi"), base=tmp_path)
        )
        row = lifecycle.drive(place, row)
        lines = [event.text for event in recorder.events if isinstance(event, LogLine)]
        assert lines == ["/workflow", "/workflow", "mine", "new", "mine", ".git", "refused"]
        assert row.ranks[0].exit_code == 3
        sent = [event for event in recorder.events if isinstance(event, FilesProgress)]
        assert bool(sent) == (attempt == 0)
        out = tmp_path / ".orch" / "runs" / "code" / "outputs" / "0" / "out"
        assert (out / "link" / "model.bin").read_bytes() == b"a\0b"
        assert (tmp_path / "results" / "train.py").read_text() == "theirs\n"
        told = [event.text for event in recorder.events if isinstance(event, Notice)]
        assert "rank 0: there is no /none, nothing is collected of it" in told


def test_files_go_into_a_running_container_and_come_out_of_it(
    lab: Lab, pair: tuple[NodeState, NodeState], place: RunnerContext, tmp_path: Path
) -> None:
    commands = ["mkdir /here; until [ -e /here/go/on ]; do sleep 0.1; done; cat /here/go/on"]
    task = Task.model_validate({"name": "copy", "commands": commands})
    row = lifecycle.submit(
        place, Submission(task, lab.fleet(*pair), image=images.resolve("orch/mpi"), base=tmp_path)
    )
    plan, context = plan_of(row), place.context(row)
    side = RankSide(place.connector, context.runtime(plan.ranks[0].node), plan, 0)
    driver = threading.Thread(target=lifecycle.drive, args=(place, row))
    driver.start()
    wait_until(lambda: place.ledger.by_id(row.id).status == "running")
    (tmp_path / "go").mkdir()
    (tmp_path / "go" / "on").write_bytes(b"gone on\n")
    wait_until(lambda: side.is_folder("/here"))
    assert push(side, tmp_path / "go", "/here/", lambda size: None).target == "/here/go"
    driver.join(60)
    assert place.ledger.by_id(row.id).status == "done"
    assert isinstance(place.processor, Recorder)
    assert [event.text for event in place.processor.events if isinstance(event, LogLine)] == ["gone on"]
    with pytest.raises(PathMissing):
        fetch(side, "/here/go", tmp_path / "back", lambda size: None)  # its container is gone
