"""The distribution that workflows install: this orch as a wheel, and its dependencies with their hashes.

Both lie in the repository, so that no job asks an index for orch. The wheel is put together from what is
installed: from the files that RECORD names and whose digests match, or from the checkout of an editable
install. Nothing is built and nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, resources
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from orch.spec.errors import ExitCode, OrchError
from orch.spec.install import NAME, requirements

REQUIREMENTS = "requirements.txt"

_UNSHIPPED = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of all files of a wheel: the same orch makes the same bytes."""

_COMMIT = re.compile(r"git\+(?:https|ssh|file)://\S+@[0-9a-f]{40}(?:#\S*)?")
_HASHED = re.compile(r"(?P<url>(?:https|file)://\S+\.whl)#sha256=(?P<hash>[0-9a-f]{64})")


class NoDistribution(OrchError):
    """Error: the installed orch cannot be shipped, or the named package is not pinned."""

    exit_code = ExitCode.CONFIG


@dataclass(frozen=True)
class Package:
    """Package that a job installs: the text of its requirements, the files beside it, and the arguments of a
    second call of pip, "" without one."""

    requirements: str
    files: Mapping[str, bytes]
    then: str = ""


def own_package(folder: str, extras: Iterable[str]) -> Package:
    """This orch, for a folder of the repository. Raises NoDistribution."""
    name, wheel = own_wheel()
    digest = hashlib.sha256(wheel).hexdigest()
    first = f"./{folder}/{name} \\\n    --hash=sha256:{digest}\n"
    return Package(first + requirements_of(extras), {f"{folder}/{name}": wheel})


def named_package(url: str, extras: Iterable[str]) -> Package:
    """A package by its URL, which says which bytes: a commit of Git, or the digest of a wheel.

    Raises NoDistribution.
    """
    if (match := _HASHED.fullmatch(url)) is not None:
        first = f"{NAME} @ {match['url']} \\\n    --hash=sha256:{match['hash']}\n"
        return Package(first + requirements_of(extras), {})
    if _COMMIT.fullmatch(url) is None:
        raise NoDistribution(
            "this package is not pinned",
            where=_without_login(url),
            detail="whoever may change what the URL leads to would run code in each job",
            hint="write `git+https://HOST/OWNER/NAME@COMMIT` with all 40 digits, or `https://…/FILE.whl#sha256=DIGEST`",
        )
    return Package(requirements_of([*extras, "build"]), {}, f"{NAME} @ {url}")


def own_wheel() -> tuple[str, bytes]:
    """The name and the bytes of the wheel of the running orch. Raises NoDistribution."""
    try:
        found = distribution(NAME)
    except PackageNotFoundError as error:
        raise NoDistribution(
            "orch is not installed, so there is no wheel of it",
            hint="install it with pip, or give --package URL",
        ) from error
    root = _editable(found)
    files = dict(_of_checkout(root) if root is not None else _of_record(found))
    info = f"{NAME.replace('-', '_')}-{found.version}.dist-info"
    for each, data in _metadata(found):
        files[f"{info}/{each}"] = data
    wheel = f"Wheel-Version: 1.0\nGenerator: orch {found.version}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/WHEEL"] = wheel.encode()
    return f"{NAME.replace('-', '_')}-{found.version}-py3-none-any.whl", _archive(files, f"{info}/RECORD")


def requirements_of(extras: Iterable[str]) -> str:
    """The dependencies of orch with these extras, each with its version and hashes."""
    blocks = list(_blocks(resources.files("orch.ci").joinpath(REQUIREMENTS).read_text("utf-8")))
    named = [*requirements(wanted := [*extras]), *(["setuptools"] if "build" in wanted else [])]
    roots = {normal(re.split(r"[^\w.-]", each)[0]) for each in named}
    kept = {name for name, vias, _ in blocks if NAME in vias and name in roots}
    while more := {name for name, vias, _ in blocks if name not in kept and kept & vias}:
        kept |= more
    return "".join(text for name, _, text in blocks if name in kept)


def normal(name: str) -> str:
    """A name of a package as an index has it. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _blocks(text: str) -> Iterator[tuple[str, set[str], str]]:
    """Each requirement: its name, what needs it, and its lines."""
    for block in re.findall(r"(?m)^[a-z].*\n(?:    .*\n)*", text):
        vias = re.search(r"# via (.*)", block)
        name = normal(re.match(r"[\w.-]+", block)[0])  # type: ignore[index]
        yield name, {normal(each) for each in (vias[1].split(", ") if vias else ())}, block


def _editable(found: Distribution) -> Path | None:
    """The checkout that an editable install leads to."""
    try:
        told: dict[str, Any] = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        told = {}
    if not (told.get("dir_info") or {}).get("editable"):
        return None
    return Path(urlsplit(str(told.get("url"))).path)


def _of_record(found: Distribution) -> Iterator[tuple[str, bytes]]:
    """The modules and data of an installed wheel, as RECORD has them. Raises NoDistribution."""
    for each in found.files or ():
        path = PurePosixPath(str(each))
        if path.parts[0] != "orch" or "__pycache__" in path.parts or each.hash is None:
            continue
        data = Path(str(each.locate())).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.new(each.hash.mode, data).digest()).decode().rstrip("=")
        if digest != each.hash.value:
            raise NoDistribution(
                "a file of the installed orch was changed",
                where=str(each.locate()),
                detail="its digest is another one than RECORD has",
                hint="install orch again",
            )
        yield str(path), data


def _of_checkout(root: Path) -> Iterator[tuple[str, bytes]]:
    """The modules and data of a checkout, as its pyproject.toml lists them. Raises NoDistribution."""
    file = root / "pyproject.toml"
    try:
        settings = _toml().loads(file.read_text("utf-8"))["tool"]["setuptools"]
        data = settings["package-data"]
        for package in settings["packages"]:
            folder = root.joinpath(*package.split(".")[1:])
            for pattern in ("*.py", *data["*"], *data.get(package, ())):
                for each in sorted(folder.glob(pattern)):
                    if each.is_file() and "__pycache__" not in each.parts:
                        yield f"orch/{each.relative_to(root).as_posix()}", each.read_bytes()
    except (OSError, KeyError, ValueError) as error:
        raise NoDistribution(
            "the checkout that orch is installed from cannot be read",
            where=str(file),
            detail=f"{type(error).__name__}: {error}",
            hint="install orch from a wheel, or give --package URL",
        ) from error


def _toml() -> Any:
    """A reader of TOML: Python has one from 3.11 on, pip brings one. Raises NoDistribution."""
    for name in ("tomllib", "tomli", "pip._vendor.tomli"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise NoDistribution(
        "this Python cannot read pyproject.toml", hint="use Python 3.11 or later, or give --package URL"
    )


def _metadata(found: Distribution) -> Iterator[tuple[str, bytes]]:
    for each in found.files or ():
        path = PurePosixPath(str(each))
        if not path.parts[0].endswith(".dist-info"):
            continue
        name = "/".join(path.parts[1:])
        if name not in _UNSHIPPED and name != "WHEEL":
            yield name, Path(str(each.locate())).read_bytes()


def _archive(files: Mapping[str, bytes], record: str) -> bytes:
    rows: list[str] = []
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)

        for name, data in sorted(files.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append(f"{name},sha256={digest},{len(data)}")
            add(name, data)
        add(record, "\n".join([*rows, f"{record},,", ""]).encode())
    return stream.getvalue()


def _without_login(url: str) -> str:
    """A URL without a name and a password in it."""
    return re.sub(r"//[^/@]*@", "//", url)
