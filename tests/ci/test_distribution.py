"""What workflows install: this orch as a wheel in the repository, and its dependencies by their hashes."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kit.support import ROOT, Folder

from orch.ci.workflows.distribution import NoDistribution, named_package, own_wheel, requirements_of
from orch.spec.install import NAME, install_hint, requirements

AWS = "project: demo\nstate: s3://bucket/demo\nsecrets_provider: awskms://alias/orch?region=us-east-1\n"
ALL = (
    "aws",
    "gcp",
    "nebius",
    "runpod",
    "crusoe",
    "lambda",
    "kubernetes",
    "postgres",
    "metrics",
    "traces",
    "ci",
)


def files_of(wheel: bytes) -> dict[str, bytes]:
    archive = zipfile.ZipFile(io.BytesIO(wheel))
    return {each: archive.read(each) for each in archive.namelist()}


def test_the_wheel_has_what_one_that_setuptools_builds_has(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "bench/", "examples/")):
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "source" / name).write_bytes((ROOT / name).read_bytes())
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    words = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(words, cwd=tmp_path / "source", check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    name, wheel = own_wheel()
    assert name == built.name
    own, theirs = files_of(wheel), files_of(built.read_bytes())
    modules = {each for each in theirs if each.startswith("orch/")}
    assert {each: own.get(each) for each in modules} == {each: theirs[each] for each in modules}
    assert {each for each in own if each.startswith("orch/")} == modules
    assert own_wheel() == (name, wheel)  # the same bytes each time


@contextmanager
def index(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """An index of the packages in a folder; its address, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def simple_wheel(name: str, version: str, payload: str, requires: str = "") -> bytes:
    """A wheel with one module that writes a file when it is imported."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}.py", payload)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return stream.getvalue()


def serve(folder: Path, name: str, file: str, data: bytes) -> str:
    """Offer a file at an index; its digest."""
    digest = hashlib.sha256(data).hexdigest()
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / file).write_bytes(data)
    with (folder / name / "index.html").open("a") as page:
        page.write(f'<a href="{file}#sha256={digest}">{file}</a>\n')
    return digest


def install(python: Path, repository: Path, url: str) -> subprocess.CompletedProcess[str]:
    """The step of the written action, with an index of ours alone."""
    text = (repository / ".github/actions/orch/action.yml").read_text()
    (script,) = re.findall(r"run: \|\n((?:        .*\n)+)", text)
    script = script.replace("python -m pip", f"{python} -m pip").replace("orch engine install", "true")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    environment |= {"PIP_INDEX_URL": url, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    return subprocess.run(
        ["bash", "-ec", script], cwd=repository, env=environment, capture_output=True, text=True, check=False
    )


def repository_of(path: Path) -> Folder:
    (path / "infra").mkdir(parents=True)
    (path / "orch.yml").write_text(AWS)
    (path / "infra/a.yml").write_text(
        "type: fleet\nname: pool\nnodes: 2\nbackends: [aws]\nresources: {gpu: H100:8}\n"
    )
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    remote = ["git", "-C", str(path), "remote", "add", "origin", "https://github.com/acme/cluster"]
    subprocess.run(remote, check=True)
    return Folder(path)


def test_a_hostile_package_of_orch_s_name_is_never_fetched(tmp_path: Path) -> None:
    """Each dependency is a stand-in of the same name and version, whose digest stands in the requirements in
    place of the real one: what pip fetches, and by which rules, is the same."""
    folder = repository_of(tmp_path / "repository")
    said = folder.orch("ci", "init", "github")
    assert said.code == 0, said.err
    served, evil = tmp_path / "index", tmp_path / "evil"
    for version in ("0.1.0", "99.0"):
        payload = f"open({str(evil)!r}, 'w').write('x')"
        serve(served, NAME, f"orch_fleet-{version}-py3-none-any.whl", simple_wheel(NAME, version, payload))
    file = folder.path / ".github/orch/requirements.txt"
    text = file.read_text()
    wheel, rest = text.split("\n", 2)[:2], text.split("\n", 2)[2]
    assert re.fullmatch(r"\./\.github/orch/orch_fleet-\S+-py3-none-any\.whl \\", wheel[0])
    digest = hashlib.sha256((folder.path / wheel[0].removesuffix(" \\")).read_bytes()).hexdigest()
    assert wheel[1] == f"    --hash=sha256:{digest}"
    lines: list[str] = []
    for pin, marker in re.findall(r"(?m)^([a-z0-9.-]+==[^\s;]+)(?: ; (.*?))? \\$", rest):
        name, version = pin.split("==")
        given = serve(
            served,
            name,
            f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
            simple_wheel(name, version, ""),
        )
        lines.append(f"{pin}{f' ; {marker}' if marker else ''} --hash=sha256:{given}")
    file.write_text("\n".join([*wheel, *lines, ""]))
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    with index(served) as (url, asked):
        done = install(python, folder.path, url)
        assert done.returncode == 0, done.stderr
        assert not [each for each in asked if "orch" in each], asked
        assert len({each.split("/")[1] for each in asked}) > 30
        # A dependency whose bytes are others is refused: an index is trusted with nothing.
        (served / "rich" / "index.html").unlink()
        version = re.search(r"rich==(\S+)", rest)
        assert version is not None
        other = simple_wheel("rich", version[1], "changed")
        serve(served, "rich", f"rich-{version[1]}-py3-none-any.whl", other)
        again = [str(python), "-m", "pip", "uninstall", "-qy", "rich"]
        subprocess.run(again, check=True, capture_output=True)
        done = install(python, folder.path, url)
        assert done.returncode != 0
        assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    shown = subprocess.run(
        [python, "-c", "import orch, sys; print(orch.__file__, orch.__version__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "venv") in shown.stdout
    assert not evil.exists()


def test_an_installed_wheel_ships_itself_and_not_when_a_file_was_changed(tmp_path: Path) -> None:
    name, wheel = own_wheel()
    (tmp_path / name).write_bytes(wheel)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    words = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(tmp_path / name)]
    subprocess.run(words, check=True)
    # Its dependencies are those of the tests.
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    here = Path(next(each for each in sys.path if each.endswith("site-packages")))
    for each in here.iterdir():
        if not (each.name.startswith(("orch_fleet", "__editable__")) or (site / each.name).exists()):
            (site / each.name).symlink_to(each)
    code = (
        "import hashlib; from orch.ci.workflows.distribution import own_wheel; name, wheel = own_wheel();"
        "print(name, hashlib.sha256(wheel).hexdigest())"
    )

    def shipped() -> subprocess.CompletedProcess[str]:
        words = [str(python), "-c", code]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = shipped()
    assert done.stdout.split() == [name, hashlib.sha256(wheel).hexdigest()], done.stderr
    with (site / "orch/__init__.py").open("a") as file:
        file.write("# changed\n")
    done = shipped()
    assert "a file of the installed orch was changed" in done.stderr


@pytest.mark.quick
def test_the_requirements_fit_what_orch_requires() -> None:
    from packaging.requirements import Requirement

    text = requirements_of([*ALL, "build"])
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"(?m)^([a-z0-9.-]+)==([^\s;]+)", text):
        pins.setdefault(name, set()).add(version)
    for each in requirements(ALL):
        wanted = Requirement(each)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        assert pins.get(name), f"{each}: run scripts/requirements.py"
        assert all(wanted.specifier.contains(version) for version in pins[name]), each
    assert all(line.startswith("    --hash=sha256:") for line in text.splitlines() if "--hash" in line)
    assert "://" not in text
    fewer = requirements_of(["ci"])
    assert "pulumi-gcp==" not in fewer
    assert "pygithub==" in fewer


@pytest.mark.quick
@pytest.mark.parametrize(
    ("url", "fits"),
    [
        (f"git+https://example.org/orch@{'a' * 40}", True),
        (f"https://example.org/orch_fleet-1-py3-none-any.whl#sha256={'b' * 64}", True),
        ("git+https://example.org/orch@main", False),
        ("git+https://example.org/orch", False),
        ("https://example.org/orch_fleet-1-py3-none-any.whl", False),
        ("orch-fleet[aws]==0.1.0", False),
        ("orch-fleet", False),
    ],
)
def test_a_package_is_named_by_what_cannot_change(url: str, fits: bool) -> None:
    if not fits:
        with pytest.raises(NoDistribution, match="not pinned"):
            named_package(url, ["ci"])
        return
    package = named_package(url, ["ci"])
    assert not package.files
    assert url.partition("#")[0] in package.requirements + package.then
    assert ("setuptools==" in package.requirements) is bool(package.then)


@pytest.mark.quick
def test_no_hint_names_a_package_that_nobody_owns() -> None:
    assert install_hint("aws").startswith("pip install 'pulumi-aws")
    assert "boto3" in install_hint("aws")
    listed = subprocess.run(
        ["git", "grep", "-lE", rf"pip install[^\n]*{NAME}", "--", "*.py", "*.j2", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [each for each in listed.stdout.split() if not each.startswith("tests/")] == []
