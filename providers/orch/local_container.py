"""What is done in a container that is a node: files are put into it, and steps of `init` run there."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

from docker.errors import APIError

from orch.images.client import connect
from orch.providers.orch.handler import Inputs, ProviderError, step_error
from orch.runner.hosts.registration import registration_id
from orch.runner.node.init_steps import INIT, longest_s, look, preparation, recorded


def kept_out(container: Any, inputs: Inputs) -> str:
    """Why steps of `init` keep the node out, else nothing; what does not run says nothing."""
    if container.status != "running" or not inputs.get("stack"):
        return ""
    try:
        done = container.exec_run(["sh", "-c", look(registration_id(inputs["stack"]))])
    except (APIError, OSError):  # it has just ended, or Docker is gone: its status tells
        return ""
    return done.output.decode(errors="replace").strip() if done.exit_code == 0 else ""


def run_steps(name: str, inputs: Inputs, *, new: bool) -> None:
    """Raises StepFailed, ProviderError."""
    found, own = recorded(inputs.get("init")), registration_id(inputs["stack"])
    script = f"{INIT}/{own}/run"
    # A step may be silent for as long as it may take.
    container: Any = connect(longest_s(found)).containers.get(name)
    container.exec_run(["mkdir", "-p", "-m", "700", f"{INIT}/{own}"])
    container.put_archive("/", archive({script.lstrip("/"): preparation(own, found, new=new)}))
    try:
        done = container.exec_run(["bash", script], demux=True)
    except APIError as error:
        raise docker_error(f"the steps of init were not run on the node {name}", error) from error
    said, errors = (each.decode(errors="replace") if each else "" for each in done.output)
    if done.exit_code != 0:
        raise step_error(inputs["hostname"], name, done.exit_code, said, errors)


def archive(files: dict[str, str]) -> bytes:
    """A tar archive of text files for root alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def docker_error(summary: str, error: APIError) -> ProviderError:
    return ProviderError(
        summary,
        detail=str(error.explanation or error),
        hint="`orch doctor` tells what this machine lacks",
        code="ORCH340",
    )
