"""Containers of this machine's Docker: steps run in them, files and placeholder devices put into them."""

from __future__ import annotations

import io
import shlex
import tarfile
import time
from collections.abc import Iterable
from typing import Any

from docker.errors import APIError

from orch.images.client import connect
from orch.providers.orch.handler import Inputs, ProviderError, step_error
from orch.runner.hosts.registration import registration_id
from orch.runner.preparation.init_steps import INIT, longest_s, look, preparation, recorded

# It asks for two seconds: an exec of its own for each question costs more than asking does.
DOCKER_ANSWERS = (
    "for try in $(seq 20); do docker version -f '{{.Server.Version}}' && exit; sleep 0.1; done; exit 1"
)


def kept_out(container: Any, inputs: Inputs) -> str:
    """Return the reason that steps of `init` keep the node out; "" if they do not, or the container does not
    run.

    If a running node cannot be asked, that is the reason: with "" it would stay kept out for good.
    """
    if container.status != "running" or not inputs.get("stack"):
        return ""
    try:
        done = container.exec_run(["sh", "-c", look(registration_id(inputs["stack"]))])
        said = done.output.decode(errors="replace").strip()
        if done.exit_code == 0:
            return said
        said = said or f"exit code {done.exit_code}"
    except (APIError, OSError) as error:
        said = str(error)
    try:
        container.reload()
    except (APIError, OSError):  # it is gone, or Docker is: its status tells
        return ""
    return f"it does not tell of its steps: {said[-300:]}" if container.status == "running" else ""


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


def make_placeholders(container: Any, paths: Iterable[str], without: Iterable[str] = ()) -> None:
    """Create device files without devices, copies of /dev/null, on a node; remove those `without`.

    Raises ProviderError.
    """
    lines = [f"rm -f {shlex.quote(path)}" for path in sorted(without)]
    for path in paths:
        folder, file = shlex.quote(path.rpartition("/")[0]), shlex.quote(path)
        lines.append(f"mkdir -p {folder}; [ -e {file} ] || mknod -m 666 {file} c 1 3")
    if not lines:
        return
    result: Any = container.exec_run(["sh", "-ec", "; ".join(lines)])
    if result.exit_code:
        raise ProviderError(
            f"the node {container.name} has no placeholders for its devices",
            detail=result.output.decode(errors="replace").strip(),
            hint="remove `simulate_gpu` of the backend `local` in `orch.yml`",
            code="ORCH342",
        )


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
