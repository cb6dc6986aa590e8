"""Writes the skeleton of a backend: `python scripts/new_backend.py NAME`. See docs/how-to/add-a-backend.md.

The skeleton is `scripts/skeleton`, a backend `newcloud` that lacks what differs from cloud to cloud. It is
written into this repository, or with `--package` as a package of its own, found by its entry point.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path

SKELETON = Path(__file__).resolve().parent / "skeleton"
PACKAGE_LINE = re.compile(r"(?m)^( *)# package: (.*)\n")
"""A line that only a package of its own has."""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "orch-newcloud"
version = "0.1"
dependencies = ["orch-fleet", "httpx>=0.27,<1"]

[project.entry-points."orch.backends"]
newcloud = "orch_newcloud.backend:NewcloudBackend"

[project.scripts]
pulumi-resource-orch-newcloud = "orch_newcloud.plugin:main"

[tool.setuptools.packages.find]
include = ["orch_newcloud*"]

[tool.setuptools.package-data]
"*" = ["*.csv"]
"""


class Backend:
    """The names of a backend, and where its parts go. `root`: of the repository, or of its own package."""

    def __init__(self, name: str, title: str, root: Path, *, own_package: bool) -> None:
        self.name, self.title, self.root, self.own_package = name, title, root, own_package
        self.folder = f"{name}_" if iskeyword(name) else name
        package = f"orch_{name}"
        self.places = (
            {
                "components": package,
                "settings.py": f"{package}/settings.py",
                "rehearsal": f"{package}/rehearsal",
                "types.csv": f"{package}/types.csv",
                "prices.csv": f"{package}/prices.csv",
                "tests": "tests",
            }
            if own_package
            else {
                "components": f"components/{self.folder}",
                "settings.py": f"spec/models/backends/{self.folder}.py",
                "rehearsal": f"rehearsal/{self.folder}",
                "tests": f"tests/components/{self.folder}",
            }
        )

    def named(self, text: str) -> str:
        """Return a text of the skeleton with the names of this backend."""
        modules = {
            "orch.components.newcloud": f"orch.components.{self.folder}",
            "orch.rehearsal.newcloud": f"orch.rehearsal.{self.folder}",
            "orch.spec.models.backends.newcloud": f"orch.spec.models.backends.{self.folder}",
        }
        if self.own_package:
            text = PACKAGE_LINE.sub(r"\1\2\n", text).replace(
                "provisioned: ClassVar = False", "provisioned: ClassVar = True"
            )
            own = (f"orch_{self.name}", f"orch_{self.name}.rehearsal", f"orch_{self.name}.settings")
            modules = dict(zip(modules, own, strict=True))
        text = PACKAGE_LINE.sub("", text)
        for old, new in modules.items():
            text = text.replace(old, new)
        text = re.sub(r"Newcloud(?=[A-Z])", self.name.capitalize(), text).replace("Newcloud", self.title)
        return text.replace("NEWCLOUD", self.name.upper()).replace("newcloud", self.name)

    def write(self) -> list[Path]:
        """Write the files, and return them."""
        written: list[Path] = []
        for part, place in self.places.items():
            source = SKELETON / part
            for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if file.suffix in (".py", ".csv"):
                    path = self.root / place / self.named(str(file.relative_to(source)))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(self.named(file.read_text("utf-8")), "utf-8")
                    written.append(path)
        return written


def registered(backend: Backend, text: str) -> str:
    """Return pyproject.toml with a backend."""
    folder, name = backend.folder, backend.name
    cloud = f"orch.components.{folder}"
    packages = [
        cloud,
        f"{cloud}.account",
        *(f"orch.rehearsal.{folder}{each}" for each in ("", ".api", ".data")),
    ]
    text = text.replace("\nkubernetes = [", f'\n{name} = ["httpx>=0.27,<1"]\nkubernetes = [', 1)
    text = text.replace("orch-fleet[", f"orch-fleet[{name},", 1)
    program = f'pulumi-resource-orch-{name} = "{cloud}.plugin:main"\n'
    text = text.replace("[project.scripts]\n", f"[project.scripts]\n{program}", 1)
    return "".join(_with_modules(text, cloud, packages))


def _with_modules(text: str, cloud: str, packages: list[str]) -> Iterator[str]:
    """Yield the text with the modules of a cloud in each list of clouds, and its packages in that of all."""
    for part in re.split(r'((?:^  "orch[\w.]*",\n)+)', text, flags=re.MULTILINE):
        lines = part.splitlines(keepends=True)
        if '  "orch.components.crusoe",\n' in lines:
            new = packages if '  "orch.components.crusoe.account",\n' in lines else [cloud]
            lines = sorted([*lines, *(f'  "{each}",\n' for each in new)])
        yield "".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="the backend as files call it: small letters and digits")
    parser.add_argument("--title", help="its name as people write it")
    parser.add_argument("--package", type=Path, metavar="FOLDER", help="write a package of its own there")
    args = parser.parse_args(words)
    name: str = args.name
    if not re.fullmatch(r"[a-z][a-z0-9]{1,13}", name):
        parser.error("a name has 2 to 14 small letters and digits, a letter first")
    title: str = args.title or name.capitalize()
    if not re.fullmatch(r"[A-Z][\w .-]{0,19}", title):
        parser.error("a title has 20 characters at most, a capital first")
    repository = SKELETON.parent.parent
    own: Path | None = args.package
    backend = Backend(name, title, own or repository, own_package=own is not None)
    if any((backend.root / place).exists() for part, place in backend.places.items() if part != "tests"):
        parser.error(f"there is a backend {name} already")
    project = backend.root / "pyproject.toml"
    if own is not None and project.exists():
        parser.error(f"{own} has a package already")
    written = backend.write()
    if own is not None:
        project.write_text(backend.named(PYPROJECT), "utf-8")
    else:
        project.write_text(registered(backend, project.read_text("utf-8")), "utf-8")
        table = repository / "ci" / "workflows" / "programs.py"
        row = f'    "{name}": ("creds", _CLOUD),\n    "lambda": ('
        table.write_text(table.read_text("utf-8").replace('    "lambda": (', row, 1), "utf-8")
    sources = [str(path) for path in written if path.suffix == ".py"]
    config = ["--quiet", "--config", str(repository / "pyproject.toml")]
    for command in (["check", "--select", "I", "--fix"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *config, *sources], check=True)
    if own is None:
        page = repository / "docs" / "reference" / "configuration.md"
        command = [sys.executable, "-m", "orch.spec.reference"]
        page.write_bytes(subprocess.check_output(command, cwd=repository))
    for path in written:
        print(path.relative_to(backend.root))
    test = next(path for path in written if path.name.startswith("test_"))
    print(f"\nwhat remains: pytest -ra {test.relative_to(backend.root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
