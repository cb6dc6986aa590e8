"""Finds, installs and checks the Pulumi engine.

An engine is the `pulumi` executable and, for `pulumi up` by hand, the Python language host beside it. orch
uses the first of: one on PATH of a suitable version; one installed for this user earlier; the archive of the
release, by its digest; a build from pinned Go modules, where the download fails and Go is present.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from orch.stacks.errors import EngineMissing

VERSION = "3.259.0"
"""The version that `install` installs: the newest CLI with a Go module, works with SDK 3.272 (measured)."""

ARCHIVE = "https://get.pulumi.com/releases/sdk/pulumi-v{version}-{system}.tar.gz"
DIGESTS = {
    "linux-x64": "94ba357acac23d01474084c4b00098dc0f7bc70ce13f34c777459254a5f718e5",
    "linux-arm64": "edc8327463a72160bb36cf82cf5062da9c8a244290a706d9980988e7bf486853",
    "darwin-x64": "eaca4c3b8277bfa3ab061fa3b270d1c66358a0b2e613da8c5587a04b7226c534",
    "darwin-arm64": "57c27f179e527e2cf9f62b841a448af72a020e44b2fb4ee0d9bd85556c00c864",
}
"""SHA-256 of the archives of VERSION. Source: pulumi/homebrew-tap, Formula/pulumi.rb at 51fb494f."""

ANSWER_S = 60
"""How long to wait for the server at a time; an archive has some 200 MB."""

MINIMUM = (3, 259)
BELOW = (4, 0)

HOST_VERSION = "3.78.0"
"""The last sdk/v3 module that holds the Python language host; works with engine 3.259 and SDK 3.272
(measured)."""

HOST_PACKAGE = "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"

HOST_BUILD = "2"
"""Which of our builds of the host an engine has, in the file `.built` beside it. An older one is renewed."""

HOST_PATCH = (
    (
        "\targs := []string{req.Program}\n\targs = append(args, req.Args...)\n",
        "\targs := pluginArguments(req)\n",
    ),
    (
        '\t"google.golang.org/grpc"\n',
        '\t"google.golang.org/grpc"\n\t"google.golang.org/protobuf/encoding/protowire"\n',
    ),
)
"""What changes in the host's source, so that it starts policy packs of an engine that is newer than itself.

The engine names the folder of a program in a field that came after 3.78 (`info`, 5), and its kind in another
(`kind`, 6). The host of 3.259 starts a pack as `python -u -m pulumi.policy ENGINE FOLDER`, and so does this.
"""

HOST_SOURCE = """
// pluginArguments are the arguments of Python for a plugin's program, as newer engines name it.
func pluginArguments(req *pulumirpc.RunPluginRequest) []string {
	info, kind := field(req.ProtoReflect().GetUnknown(), 5), string(field(req.ProtoReflect().GetUnknown(), 6))
	folder := string(field(info, 2))
	if req.Program != "" || folder == "" {
		return append([]string{req.Program}, req.Args...)
	}
	if kind == "analyzer" && len(req.Args) > 0 {
		return append([]string{"-u", "-m", "pulumi.policy", req.Args[0], folder}, req.Args[1:]...)
	}
	return append([]string{"-u", folder}, req.Args...)
}

// field is the bytes of a field of an encoded message; nil where it has none.
func field(message []byte, wanted protowire.Number) []byte {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return nil
		}
		message = message[length:]
		if number == wanted && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if length = protowire.ConsumeFieldValue(number, kind, message); length < 0 {
			return nil
		}
		message = message[length:]
	}
	return nil
}
"""

CLIPBOARD_FORK = "github.com/tgummerer/clipboard v0.0.0-20241001131231-d02d263e614e"
"""pkg/v3's own replacement of a dependency.

Go ignores the `replace` lines of a required module, so our go.mod repeats it.
"""

GO_MINIMUM = (1, 25)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Engine:
    """A usable engine. `origin`: "PATH", "installed" or "built"."""

    command: Path
    version: str
    origin: str

    @property
    def bin_dir(self) -> Path:
        return self.command.parent


def home() -> Path:
    """The folder of this user's engines: `<cache>/orch/engine`; ORCHCTL_ENGINE_HOME overrides it."""
    override = os.environ.get("ORCHCTL_ENGINE_HOME")
    return Path(override) if override else Path(platformdirs.user_cache_dir("orch")) / "engine"


def find() -> Engine | None:
    """The engine that orch will use; None when there is none. Does not install."""
    on_path = shutil.which("pulumi")
    if on_path:
        stat = os.stat(on_path)
        version = _version_of(on_path, stat.st_mtime_ns, stat.st_size)
        if version and fits(version):
            return Engine(Path(on_path), version, "PATH")
    own = home() / VERSION / "bin" / "pulumi"
    if os.access(own, os.X_OK):
        return Engine(own, VERSION, "built" if (own.parent / ".built").exists() else "installed")
    return None


def require() -> Engine:
    """The engine that orch will use. Raises EngineMissing when there is none."""
    engine = find()
    if engine is None:
        raise EngineMissing(
            "no Pulumi engine is on this machine",
            detail=f"a `pulumi` of version >= {MINIMUM[0]}.{MINIMUM[1]} and < {BELOW[0]} is needed",
            hint="run `orch engine install`",
            code="ORCH345",
        )
    return engine


def fits(version: str) -> bool:
    match = re.match(r"v?(\d+)\.(\d+)\.", version)
    return bool(match) and MINIMUM <= (int(match[1]), int(match[2])) < BELOW


def install(progress: Progress) -> Engine:
    """The engine, installed first if there is none. `progress` gets one line for each step.

    Raises EngineMissing when neither the download nor a build works.
    """
    engine = find()
    if engine is not None:
        if engine.origin == "built" and (engine.bin_dir / ".built").read_text() != HOST_BUILD:
            _renew_host(engine, progress)
        return engine
    root = home() / VERSION
    progress(f"installing the Pulumi engine {VERSION} into {root} …")
    failure = _download(root)
    if failure is None:
        return require()
    progress(
        f"its download is not possible here ({failure}); building it from Go modules (about 3 minutes) …"
    )
    _build(root, progress)
    return require()


@functools.lru_cache(maxsize=8)
def _version_of(command: str, mtime_ns: int, size: int) -> str | None:
    """The version of a `pulumi`, cached across runs by path, time and size: a call takes 0.2 seconds."""
    cache = home() / "versions.txt"
    key = f"{command}\t{mtime_ns}\t{size}\t"
    if cache.exists():
        for line in cache.read_text().splitlines():
            if line.startswith(key):
                return line[len(key) :]
    try:
        answer = subprocess.run(
            [command, "version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = answer.stdout.strip().removeprefix("v")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with cache.open("a") as file:
            file.write(f"{key}{version}\n")
    except OSError:
        pass  # only a cache
    return version


def _download(root: Path) -> str | None:
    """Unpack the release's archive if it has the pinned digest. Return None, or why it is not there."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower())
    system = f"{sys.platform}-{machine or platform.machine().lower()}"
    if system not in DIGESTS:
        return f"no archive is known for {system}"
    staging = root.with_name(f"{root.name}.unpacking-{os.getpid()}")
    try:
        with urllib.request.urlopen(
            ARCHIVE.format(version=VERSION, system=system), timeout=ANSWER_S
        ) as answer:
            archive: bytes = answer.read()
        if (digest := hashlib.sha256(archive).hexdigest()) != DIGESTS[system]:
            return f"its SHA-256 is {digest}, not the pinned one"
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as files:
            files.extraction_filter = getattr(tarfile, "data_filter", None)
            files.extractall(staging)
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "bin").exists():  # another process was faster
            (staging / "pulumi").rename(root / "bin")
    except (OSError, ValueError, tarfile.TarError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return None


def _build(root: Path, progress: Progress) -> None:
    go = shutil.which("go")
    version = _go_version(go) if go else None
    if go is None or version is None or version < GO_MINIMUM:
        raise EngineMissing(
            "the Pulumi engine can neither be downloaded nor built here",
            detail="the download failed, and "
            + (
                "there is no Go"
                if go is None
                else f"Go {version} is older than {GO_MINIMUM[0]}.{GO_MINIMUM[1]}"
            ),
            hint=f"put a `pulumi` >= {MINIMUM[0]}.{MINIMUM[1]} on PATH, or install Go >= "
            f"{GO_MINIMUM[0]}.{GO_MINIMUM[1]} and run `orch engine install` again",
            code="ORCH345",
        )
    staging = root.with_name(f"{root.name}.building-{os.getpid()}")
    binaries = staging / "bin"
    binaries.mkdir(parents=True)
    try:
        progress("  1/2 the command line (downloads about 600 modules, then compiles)")
        cli = staging / "cli"
        _write_module(
            cli,
            [f"github.com/pulumi/pulumi/pkg/v3 v{VERSION}", f"github.com/pulumi/pulumi/sdk/v3 v{VERSION}"],
            "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
            f"replace github.com/atotto/clipboard => {CLIPBOARD_FORK}\n",
        )
        ldflags = f"-s -w -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{VERSION}"
        _go_build(go, cli, "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi", binaries / "pulumi", ldflags)
        progress("  2/2 the Python language host (for `pulumi up` by hand)")
        _build_host(go, staging / "host", binaries / "pulumi-language-python")
        # Plain scripts of the SDK's module; a module zip keeps no mode bits.
        modules = Path(
            _go(go, ["list", "-m", "-f", "{{.Dir}}", "github.com/pulumi/pulumi/sdk/v3"], cli).strip()
        )
        for script in ("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python"):
            target = binaries / Path(script).name
            shutil.copyfile(modules / script, target)
            target.chmod(0o755)
        (binaries / ".built").write_text(HOST_BUILD)
        shutil.rmtree(cli)
        shutil.rmtree(staging / "host")
        if root.exists():  # another process was faster
            return
        staging.rename(root)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _renew_host(engine: Engine, progress: Progress) -> None:
    """Build the language host of an engine again. Without Go the former one stays: only packs need more."""
    go = shutil.which("go")
    version = _go_version(go) if go else None
    if go is None or version is None or version < GO_MINIMUM:
        progress("policy packs do not run: there is no Go to build the Python language host again")
        return
    progress("building the Python language host again, which starts policy packs (seconds) …")
    staging = engine.bin_dir.with_name(f"host.building-{os.getpid()}")
    try:
        staging.mkdir(parents=True)
        _build_host(go, staging / "host", staging / "pulumi-language-python")
        (staging / "pulumi-language-python").replace(engine.bin_dir / "pulumi-language-python")
        (engine.bin_dir / ".built").write_text(HOST_BUILD)
    except (EngineMissing, OSError) as error:
        progress(f"policy packs do not run: the Python language host could not be built again ({error})")
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _build_host(go: str, folder: Path, target: Path) -> None:
    """Build the Python language host from its source with our change. Raises EngineMissing."""
    _write_module(folder, [f"github.com/pulumi/pulumi/sdk/v3 v{HOST_VERSION}"], HOST_PACKAGE, "")
    _go(go, ["mod", "tidy"], folder)
    source = Path(_go(go, ["list", "-f", "{{.Dir}}", HOST_PACKAGE], folder).strip()) / "main.go"
    text = source.read_text("utf-8")
    for before, after in HOST_PATCH:
        if text.count(before) != 1:
            raise EngineMissing(
                "the Python language host cannot be built",
                detail="its source is not the one that orch knows how to change",
                hint="put a `pulumi` with its language hosts on PATH",
                code="ORCH345",
            )
        text = text.replace(before, after)
    main = folder / "host"
    main.mkdir()
    (main / "main.go").write_text(text + HOST_SOURCE, "utf-8")
    _go_build(go, folder, "./host", target, "-s -w")


def _write_module(folder: Path, requires: list[str], package: str, replace: str) -> None:
    folder.mkdir()
    needs = "".join(f"\t{line}\n" for line in requires)
    (folder / "go.mod").write_text(f"module orch.engine\n\ngo 1.25.0\n\nrequire (\n{needs})\n\n{replace}")
    (folder / "tools.go").write_text(f'//go:build tools\n\npackage tools\n\nimport _ "{package}"\n')


def _go_build(go: str, folder: Path, package: str, target: Path, ldflags: str) -> None:
    _go(go, ["mod", "tidy"], folder)
    _go(
        go,
        [
            "build",
            "-trimpath",
            "-tags",
            "osusergo grpcnotrace",
            "-ldflags",
            ldflags,
            "-o",
            str(target),
            package,
        ],
        folder,
    )


def _go(go: str, words: list[str], folder: Path) -> str:
    result = subprocess.run(
        [go, *words],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise EngineMissing(
            f"building the engine failed at `go {' '.join(words[:2])}`",
            detail="\n".join(result.stderr.strip().splitlines()[-5:]),
            hint="see that the Go module proxy can be reached, or put a `pulumi` on PATH",
            code="ORCH345",
        )
    return result.stdout


def _go_version(go: str) -> tuple[int, int] | None:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"go(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else None


def search_path(engine: Engine) -> str:
    """PATH for the engine: itself and this Python's scripts (our provider) first."""
    return os.pathsep.join(
        [str(engine.bin_dir), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
