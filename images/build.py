"""Images that are named after their content, and built when missing.

`tag("job")` is `orch/job:` and twelve hex digits of a hash over the folder's files and the base's name. So an
image that exists is up to date, two versions of orch can share a machine, and the name alone tells whether a
node has the image.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

from platformdirs import user_cache_path

from orch.images import docker
from orch.images.base import HUB_IMAGE, ensure_base, ensure_official
from orch.images.docker import Progress
from orch.images.errors import BuildFailed, UnknownImage
from orch.images.variants import Recipe, described, recipe, variants

PREFIX = "orch/"
NAMES = ("node", "job", "mpi")

_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")
_STEP = re.compile(r"^(?:Step \d+/\d+ : |#\d+ \[[^]]*\d+/\d+\] )(\w+ .*)")
_BUILD_TIMES = {"node": "about 20 s", "job": "about 1 min", "mpi": "about 15 s"}


def names() -> tuple[str, ...]:
    """The images this version always needs; `variants()` are built when a job asks for one."""
    return NAMES


def can_build(image: str) -> bool:
    """Return True if this version builds exactly this image: a full tag under `orch/`."""
    name = image.removeprefix(PREFIX).partition(":")[0]
    return is_ours(image) and name in (*NAMES, *variants()) and tag(name) == image


def is_ours(image: str) -> bool:
    """Return True if orch builds this image itself. Such an image is in no registry: nodes get it from
    here."""
    return image.startswith(PREFIX)


def resolve(image: str) -> str:
    """The full tag of an image name: `orch/job` gets the tag of this version, other names are unchanged.

    Raises UnknownImage for a name under `orch/` that does not exist.
    """
    if not is_ours(image):
        return image
    name, _, version = image.removeprefix(PREFIX).partition(":")
    return image if version else tag(name)


def tag(name: str, folder: Path | None = None) -> str:
    """`orch/NAME:HASH` of the image's folder, or of another `folder`. Builds nothing. Raises UnknownImage."""
    digest = hashlib.sha256(_identity(recipe(name)).encode())
    for path, data in _content(folder if folder is not None else _folder(name)):
        digest.update(f"\0{path}\0{len(data)}\0".encode())
        digest.update(data)
    return f"{PREFIX}{name}:{digest.hexdigest()[:12]}"


def ensure(name: str, *, progress: Progress) -> str:
    """The image's full tag, after building the image if the daemon does not have it yet.

    Returns at once, without a message, if it does. Two concurrent processes build it once. Raises
    DockerUnavailable, BaseUnavailable, BuildFailed, UnknownImage.
    """
    made = recipe(name)
    if made is not None and made.own_image is not None:
        ensure(made.own_image.removeprefix(PREFIX), progress=progress)
    return build_once(name, _folder(name), cache=user_cache_path("orch") / "images", progress=progress)


def build_once(name: str, folder: Path, *, cache: Path, progress: Progress) -> str:
    """`ensure` for an image of any folder; locks and logs are in `cache`."""
    reference = tag(name, folder)
    if docker.has_image(reference):
        return reference
    docker.require_server()
    with _lock(
        cache / f"{name}.lock", lambda: progress(f"waiting for another process that builds {PREFIX}{name}")
    ):
        if not docker.has_image(reference):
            log = cache / f"{reference.replace('/', '-').replace(':', '-')}.log"
            expected = _BUILD_TIMES.get(name, "a while")
            _build(reference, folder, log, progress, expected=expected, recipe=recipe(name))
    return reference


def _identity(recipe: Recipe | None) -> str:
    """Return the part of a tag's digest besides the folder: the name of the base and the build arguments."""
    if recipe is None:
        return HUB_IMAGE
    own = recipe.own_image and resolve(recipe.own_image)
    base = own or recipe.registry_image or f"debian:{recipe.release}-slim"
    return "\0".join((base, *(f"{key}={value}" for key, value in recipe.arguments)))


def _base(recipe: Recipe | None, log: Path, progress: Progress) -> str:
    """The image that another one stands on, made sure of. Raises BaseUnavailable."""
    if recipe is None:
        return ensure_base(log, progress)
    if recipe.own_image is not None:
        return resolve(recipe.own_image)
    if recipe.registry_image is not None:
        return ensure_official(recipe.registry_image, log, progress)
    return ensure_base(log, progress, recipe.release or "")


def _build(
    reference: str, folder: Path, log: Path, progress: Progress, *, expected: str, recipe: Recipe | None
) -> None:
    log.write_text("")
    base = _base(recipe, log, progress)
    progress(f"building {reference} on {base} ({expected} where the mirror is near; log: {log})")
    command = ["docker", "build", "--force-rm", "--tag", reference, "--label", f"orch.base={base}"]
    command += ["--build-arg", f"BASE={base}"]
    for key, value in recipe.arguments if recipe is not None else ():
        command += ["--build-arg", f"{key}={value}"]
    for variable in _PROXY_VARIABLES:
        if variable in os.environ:
            command += ["--build-arg", variable]
    result = docker.run_logged(
        [*command, "-"], log=log, progress=progress, stdin=_context(folder), describe=_describe
    )
    if result.code != 0:
        raise BuildFailed(
            f"building {reference} failed",
            detail="\n".join(result.tail[-10:]),
            hint=f"the whole output is in {log}; it needs a way to a Debian mirror (proxy: http_proxy)",
        )
    progress(f"built {reference} in {result.seconds:.0f} s")


def _folder(name: str) -> Path:
    made = recipe(name)
    folder = Path(str(files("orch.images"))) / (made.folder if made is not None else name)
    if (made is None and name not in NAMES) or not folder.is_dir():
        raise UnknownImage(
            f"there is no image {PREFIX}{name}",
            hint="known: " + ", ".join((*(PREFIX + known for known in NAMES), described())),
        )
    return folder


def _content(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files of an image's folder in a fixed order, without documents: a README needs no rebuild."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file() and not entry.name.endswith(".md"):
            yield entry.name, entry.read_bytes()


def _context(folder: Path) -> bytes:
    """The build context as tar. Fixed owner, mode and time keep Docker's cache valid across checkouts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in _content(folder):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _describe(line: str) -> str | None:
    """The message for a line that starts a step of the Dockerfile (classic builder, BuildKit), else None."""
    step = _STEP.match(line)
    if step is None or not step[1].startswith("RUN"):
        return None
    text = step[1] if len(step[1]) <= 90 else step[1][:87] + "..."
    return f"  {text}"


@contextlib.contextmanager
def _lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
