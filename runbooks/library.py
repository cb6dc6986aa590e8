"""Where runbooks are: a project's folder `runbooks/`, then the library that comes with orch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orch.runbooks.parameters import WrongValue
from orch.runner.private import stage_file
from orch.spec.document.text import Source, read
from orch.spec.loader.load import InvalidConfiguration
from orch.spec.suggest import hint_for, listed

LIBRARY = Path(__file__).parent.parent / "docs" / "runbooks"
"""The library is documentation that can be run. The wheel has it as data of the package."""

FOLDER = "runbooks"


@dataclass(frozen=True)
class Place:
    """A runbook that can be run by its name. `own`: of the project."""

    name: str
    path: Path
    own: bool


def places(root: Path) -> dict[str, Place]:
    """The runbooks of a project and of the library by name; the project's come before the library's."""
    found = {each.stem: Place(each.stem, each, own=False) for each in _files(LIBRARY)}
    found |= {each.stem: Place(each.stem, each, own=True) for each in _files(root / FOLDER)}
    return dict(sorted(found.items()))


def source_of(root: Path, target: str) -> Source:
    """The text of a runbook, by its name or its file. Raises WrongValue, InvalidConfiguration."""
    if "/" in target or target.endswith(".md"):
        return text_of(target)
    known = places(root)
    if target not in known:
        raise WrongValue(
            f"there is no runbook {target!r}",
            detail=f"neither in {FOLDER}/ of the project nor in the library",
            hint=hint_for(target, known) or f"known are {listed(known)}",
        )
    return text_of(str(known[target].path))


def text_of(file: str) -> Source:
    """Raises InvalidConfiguration."""
    source = read(file)
    if isinstance(source, Source):
        return source
    raise InvalidConfiguration([source])


Copied = Literal["written", "unchanged", "kept"]


def copy(root: Path, names: tuple[str, ...]) -> dict[str, Copied]:
    """Copy runbooks of the library into the project, all of them without names: `written`; `unchanged` where
    the copy is there; `kept` where the file there is another one. Raises WrongValue, OSError."""
    library = {each.stem: each for each in _files(LIBRARY)}
    for name in names:
        if name not in library:
            hint = hint_for(name, library) or f"the library has {listed(library)}"
            raise WrongValue(f"the library has no runbook {name!r}", hint=hint)
    done: dict[str, Copied] = {}
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    for name in names or tuple(library):
        text, target = library[name].read_bytes(), folder / f"{name}.md"
        if target.exists():
            done[name] = "unchanged" if target.read_bytes() == text else "kept"
            continue
        stage_file(target, text, 0o644).replace(target)
        done[name] = "written"
    return done


def _files(folder: Path) -> list[Path]:
    found = folder.glob("*.md") if folder.is_dir() else ()
    return sorted(
        each for each in found if re.fullmatch(r"[a-z][a-z0-9-]{1,40}", each.stem) and each.is_file()
    )
