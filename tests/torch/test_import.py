"""`import ringkern`, before any call."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import torch

import ringkern


def python(
    program: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_build_info() -> None:
    info = ringkern.build_info()
    assert list(info) == [
        "version",
        "torch",
        "compiler",
        "cpu_isa",
        "cuda",
        "cuda_archs",
        "cuda_runtime",
        "cuda_devices",
        "dtypes",
        "ops",
        "protocols",
        "algorithms",
    ]
    assert info["version"] == ringkern.__version__ == importlib.metadata.version("ringkern")
    assert info["torch"].split(".")[:2] == torch.__version__.split(".")[:2]
    assert info["compiler"].startswith("gcc ")
    assert isinstance(info["cpu_isa"], str)
    assert info["protocols"] == ["simple", "ll", "ll128"]
    assert info["algorithms"] == ["ring", "one_shot", "two_shot"]
    assert info["ops"] == (
        ["sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"]
    )
    for name in info["dtypes"]:
        assert isinstance(getattr(torch, name), torch.dtype)
    assert {"float32", "float64", "float16", "bfloat16"} <= set(info["dtypes"])
    assert {"int8", "uint8", "int32", "int64"} <= set(info["dtypes"])
    info["version"] = "changed"
    assert ringkern.build_info()["version"] == ringkern.__version__, "a copy each time"


def test_build_info_says_whether_cuda_is_in() -> None:
    info = ringkern.build_info()
    assert isinstance(info["cuda"], bool)
    assert isinstance(info["cuda_devices"], int)
    if info["cuda"]:
        assert info["cuda_archs"]
        assert info["cuda_runtime"]
    else:
        assert info["cuda_archs"] is None
        assert info["cuda_runtime"] is None
        assert info["cuda_devices"] == 0


def test_all_is_documented_and_there() -> None:
    assert sorted(ringkern.__all__) == [
        "Communicator",
        "ShardSum",
        "backend",
        "build_info",
        "ddp",
        "dump",
        "empty",
        "errors",
        "functional",
        "init",
        "is_shared",
        "local",
        "ring_all_gather",
        "ring_all_reduce",
        "ring_reduce_scatter",
        "shared_memory",
        "zeros",
    ]
    for name in ringkern.__all__:
        assert getattr(ringkern, name).__doc__


def test_errors_are_one_family() -> None:
    errors = ringkern.errors
    base = errors.RingKernError
    exceptions = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert all(issubclass(cls, base) and cls.__doc__ for cls in exceptions)
    assert issubclass(base, RuntimeError)
    assert issubclass(errors.CollectiveTimeoutError, TimeoutError)
    assert issubclass(errors.SharedMemoryError, errors.TransportError)


def test_types_are_installed() -> None:
    package = importlib.resources.files("ringkern")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_C.pyi").is_file()


IMPORT = """
try:
    import ringkern
    print("imported")
except (ImportError, ValueError) as error:
    print(error)
"""


def test_another_torch_is_refused() -> None:
    # Pretends another version of torch; the next patch release would do.
    release = ".".join(torch.__version__.split(".")[:2])
    done = python(
        f"import torch; torch.__version__ = '1.0.0'{IMPORT}"
        f"torch.__version__ = '{release}.99+local'{IMPORT}"
    )
    assert done.returncode == 0, done.stderr
    refused, accepted = done.stdout.splitlines()
    built = ringkern.build_info()["torch"]
    assert f"ringkern was built against torch {built} and this is torch 1.0.0" in refused
    assert "pip install --force-reinstall" in refused
    assert accepted == "imported"


def copy_of_the_source(folder: Path) -> Path:
    copy = folder / "ringkern"
    copy.mkdir()
    for file in Path(ringkern.__file__).parent.glob("*.py"):
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_the_source_is_no_installation(tmp_path: Path) -> None:
    copy = copy_of_the_source(tmp_path)
    # An editable installation would find the extension of the installed package. torch reads that
    # package's entry point before this finder returns its module.
    files = "import sys, ringkern_autoload\n"
    files += "sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]"
    done = python(files + IMPORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"ringkern's extension is not in {copy}" in done.stdout
    assert "pip install -e ." in done.stdout


def test_an_extension_that_does_not_load_says_why(tmp_path: Path) -> None:
    extension = Path(ringkern._C.__file__)
    (copy_of_the_source(tmp_path) / extension.name).write_bytes(b"not a library")
    done = python(IMPORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"ringkern's extension does not load under torch {torch.__version__}" in done.stdout
    assert "file too short" in done.stdout or "invalid ELF header" in done.stdout
    assert "pip install --force-reinstall" in done.stdout


QUIET = """
import sys, threading, os
import torch
threads, modules = threading.active_count(), set(sys.modules)
tasks, descriptors = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
import ringkern
ringkern.build_info()
assert not torch.cuda.is_initialized()
assert not torch.distributed.is_initialized()
assert threading.active_count() == threads
assert len(os.listdir("/proc/self/task")) == tasks
assert len(os.listdir("/proc/self/fd")) == descriptors
loaded = set(sys.modules) - modules
heavy = {"numpy", "cupy", "matplotlib", "sklearn", "ringkern.tools"} & loaded
assert not heavy, heavy
maps = open("/proc/self/maps").read()
assert "libcudart" not in maps or torch.version.cuda, "links torch's CUDA libraries"
"""


def test_import_starts_nothing() -> None:
    done = python(QUIET)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_environment_is_read_at_import() -> None:
    done = python(
        f"""import os{IMPORT}
os.environ["RINGKERN_PROTOCOL"] = "ll"{IMPORT}
print(ringkern.config.config)
""",
        RINGKERN_PROTOCOL="tree",
        RINGKERN_TIMEOUT="7.5",
        RINGKERN_TIMEOUTS="3",
    )
    assert done.stdout.splitlines() == [
        "RINGKERN_PROTOCOL='tree': choose one of auto, simple, ll, ll128",
        "imported",
        "Config(protocol='ll', timeout_s=7.5, algorithm='auto', dump_dir=None, "
        "deterministic='auto', accumulate='auto', host='', inter_host=None, on_fault='', "
        "cuda_memory='auto')",
    ]
    assert "unknown environment variable RINGKERN_TIMEOUTS; did you mean RINGKERN_TIMEOUT?" in (
        done.stderr
    )


def test_a_folder_that_hides_the_package_is_named(tmp_path: Path) -> None:
    """The current directory has a clone, and ringkern is installed as editable."""
    (tmp_path / "ringkern" / "ringkern").mkdir(parents=True)
    program = (
        "import sys, importlib.machinery as m\n"
        "spec = m.PathFinder.find_spec('ringkern', [sys.path[0] or '.'])\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: spec if name == 'ringkern' else found(name, *a)\n"
        "import torch"
    )
    done = python(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "which hides the package. Run Python from another" in done.stderr
    assert str(tmp_path / "ringkern") in done.stderr or "./ringkern" in done.stderr
    beside = python("import torch", cwd=tmp_path / "ringkern" / "ringkern")
    assert "hides" not in beside.stderr
