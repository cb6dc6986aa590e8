"""Which kubeconfig is asked by: the file of orch.yml, or one that is written of the text given there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orch.runner.private import private_folder, write_private
from orch.spec.models.backends.kubernetes import KubernetesSettings


def kubeconfig_file(settings: KubernetesSettings, root: Path) -> Path | None:
    """The file; None for the user's own kubeconfig. A path is relative to the project `root`.

    Text is kept in a private file of the project, `.orch/kubernetes/`, for programs take files alone.
    Raises OSError where it cannot be written.
    """
    given = settings.kubeconfig
    if given is None:
        return None
    if given.filename is not None:
        return (root / Path(given.filename).expanduser()).absolute()
    text = given.data or ""
    file = root.absolute() / ".orch" / "kubernetes" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.yml"
    if not file.exists():
        private_folder(file.parent)
        write_private(file, text)
    return file
