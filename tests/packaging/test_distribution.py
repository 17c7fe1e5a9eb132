"""What a stranger installs: sdist, wheel from the sdist, a fresh environment, another directory."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import starsd_edge
from starsd_edge.errors import EXTRA_OF
from tests.support.bundle_store import used_now

ROOT = Path(__file__).parents[2]
PACKAGES = {"starsd_edge", "starsd_export", "starsd_server", "starsd_jetson"}
# A target's base install must never bring one of these.
FOREIGN = {"torch", "transformers", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt", "safetensors", "gguf"}


def run(command: Sequence[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def run_checked(command: Sequence[str | Path], cwd: Path) -> str:
    result = run(command, cwd)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel made from it."""
    directory = tmp_path_factory.mktemp("dist")
    run_checked([sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT], directory)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def fresh_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that holds the wheel's base install and nothing else."""
    place = tmp_path_factory.mktemp("fresh")
    run_checked([sys.executable, "-m", "venv", "--without-pip", "venv"], place)  # a pip of its own would take longest
    python = place / "venv" / "bin" / "python"
    parcels = _parcels_for(wheel)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    offline = [*install, "--no-index", "--find-links", parcels, wheel]
    if run(offline, place).returncode != 0:  # the first time; afterwards no network is needed
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", parcels, wheel]
        run_checked(fetch, place)
        run_checked(offline, place)
    return python


def _parcels_for(wheel: Path) -> Path:
    """Where the wheels of the base install are kept between runs: a directory for each set of requirements."""
    key = hashlib.sha256("\n".join([sys.version, *sorted(_requirements(wheel))]).encode()).hexdigest()[:16]
    return used_now(ROOT / ".cache" / "test-parcels" / key)


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def test_the_wheel_holds_exactly_the_four_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_module_of_the_checkout(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = [ROOT / "starsd_edge", *ROOT.glob("*/starsd_*")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    pages = [file for folder in folders for file in folder.rglob("*.html")]
    assert {page.name for page in pages} == {"page.html", "star.html"}
    files += pages
    assert len(files) > 50
    missing = [f for f in files if "/".join(f.parts[_package_depth(f) :]) not in names]
    assert missing == []


def _package_depth(file: Path) -> int:
    return next(i for i, part in enumerate(file.parts) if part in PACKAGES and i >= len(ROOT.parts))


def test_the_sdist_holds_what_builds_and_tests_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "scripts/test.sh", "scripts/demo.sh", "tests/conftest.py"}
    pages = {str(page.relative_to(ROOT)) for kind in ("*.md", "docs/*", "[a-z]*/README.md") for page in ROOT.glob(kind)}
    assert needed <= names
    assert pages - names == set()


def test_the_command_runs_from_another_directory(fresh_python: Path, tmp_path: Path) -> None:
    command = fresh_python.with_name("starsd-edge")
    assert run_checked([command, "--version"], tmp_path) == f"starsd-edge {starsd_edge.__version__}\n"
    help_text = run_checked([command, "--help"], tmp_path)
    for name in ("pull", "export", "run-draft", "run-target"):
        assert name in help_text


def test_no_name_but_the_four_is_importable(fresh_python: Path, tmp_path: Path) -> None:
    script = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    names = ["server", "export", "jetson", "tests", "scripts", "docs", *sorted(PACKAGES)]
    assert run_checked([fresh_python, "-c", script, *names], tmp_path).strip() == str(sorted(PACKAGES))


def test_the_base_install_brings_no_framework(fresh_python: Path, tmp_path: Path) -> None:
    script = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"
    installed = {canonicalize_name(name) for name in run_checked([fresh_python, "-c", script], tmp_path).split()}
    assert "starsd-edge" in installed
    assert not installed & FOREIGN


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["export", "smollm2-135m"], "export"), (["run-draft", "--port", "0"], "server")]
)
def test_a_missing_extra_is_one_line_with_the_command_that_mends_it(
    fresh_python: Path, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    result = run([fresh_python.with_name("starsd-edge"), *arguments], tmp_path)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"pip install '.[{extra}]'" in result.stderr


def test_extras_bring_what_the_command_line_says_they_do(wheel: Path) -> None:
    requirements = [Requirement(line) for line in _requirements(wheel)]
    for library, extra in EXTRA_OF.items():
        brought = {canonicalize_name(r.name) for r in requirements if r.marker and r.marker.evaluate({"extra": extra})}
        assert canonicalize_name(library) in brought
