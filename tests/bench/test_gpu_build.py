"""How ``make gpu`` builds: the package of links, pieces built elsewhere, what a machine lacks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import alone, arrays, build, cases, core, device, extension, machine, pieces
from bench.gpu.part import Context, Failed, Skipped
from ringkern.local import Ring

ROOT = Path(__file__).resolve().parents[2]
MACHINE: dict[str, Any] = {
    "gpus": [{"name": "a GPU", "capability_major": 9, "capability_minor": 0}],
    "nvcc": "13.0",
    "torch": "2.11.0+cu130",
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    state = tmp_path / "state.json"
    return Context("a_part", state, tmp_path, "cpu", True, "", 60.0, {**MACHINE})


# ---- the package of links


def test_a_package_of_links_imports_where_nothing_is_installed(tmp_path: Path) -> None:
    (tmp_path / "ringkern").mkdir()
    (tmp_path / "ringkern" / "gone.py").symlink_to("nowhere")
    build.link_package(tmp_path, build.built_by_make())
    assert not (tmp_path / "ringkern" / "gone.py").is_symlink()
    info = build.import_package(tmp_path)  # with -S: no finder of an editable install
    assert info["version"]


@pytest.mark.parametrize("lost", ["ringkern/hosts", "ringkern/news.py", "ringkern_autoload.py"])
def test_a_link_that_is_missing_is_noticed(lost: str, tmp_path: Path) -> None:
    build.link_package(tmp_path, build.built_by_make())
    (tmp_path / lost).unlink()
    with pytest.raises(Failed, match=Path(lost).stem):
        build.import_package(tmp_path)


def test_a_subpackage_that_no_import_needs_is_noticed(tmp_path: Path) -> None:
    build.link_package(tmp_path, build.built_by_make())
    (tmp_path / "ringkern/tools").unlink()
    with pytest.raises(Failed, match=r"ringkern\.tools"):
        build.import_package(tmp_path)


def test_all_modules_are_looked_for() -> None:
    names = build.module_names(ROOT / "ringkern")
    assert {"ringkern", "ringkern.hosts", "ringkern.local"} <= set(names)
    assert len(names) == len(list((ROOT / "ringkern").rglob("*.py")))


# ---- core and extension


def test_the_library_is_built_without_torch_and_the_extension_with_it(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def ran(self: Context, command: list[str], **_: Any) -> None:
        commands.append(command)
        (self.work / "cmake").mkdir(exist_ok=True)
        (self.work / "cmake" / "summary.txt").write_text("kernels\n")

    monkeypatch.setattr(Context, "run", ran)
    monkeypatch.setattr(build.ringkern_build, "find_tool", lambda name: f"/bin/{name}")
    monkeypatch.setattr(device, "find_nvcc", lambda: "/bin/nvcc")
    core.run(context)
    assert commands[-1][-2:] == ["--target", "ringkern_core"]
    assert not any("RK_TORCH" in word for command in commands for word in command)
    monkeypatch.setattr(build, "torch_to_build_with", lambda: ("/torch", "2.11.0"))
    monkeypatch.setattr(extension, "use", lambda *_: {"cuda_devices": 0})
    extension.run(context)
    assert commands[-1][-2:] == ["--target", "_C"]
    assert "-DRK_TORCH=/torch" in commands[-2]


def test_a_rehearsal_compiles_nothing(context: Context) -> None:
    context.compiles = False
    with pytest.raises(Skipped, match="--preflight does"):
        core.run(context)
    extension.run(context)
    assert str(build.built_by_make()) in context.figures["built"]


# ---- pieces built elsewhere


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the work directory of a preflight in which every program is ``true``."""
    folder, program = tmp_path / "preflight", shutil.which("true")
    assert program
    (folder / "cmake").mkdir(parents=True)
    for name in (build.CORE_LIBRARY, build.EXTENSION, *build.test_targets(ROOT)):
        shutil.copy(program, folder / "cmake" / name)
    for name in pieces.PROGRAMS.values():
        shutil.copy(program, folder / name)
    monkeypatch.setattr(pieces, "_digest", lambda: "sources")
    return folder


def leave(work: Path, *less: str) -> Path:
    parts = {"core", "extension", "ctest", *pieces.PROGRAMS}
    return pieces.leave(work, pieces.identity(MACHINE), parts - set(less))


def test_pieces_of_a_preflight_are_taken(work: Path, tmp_path: Path, context: Context) -> None:
    left = leave(work)
    taken = pieces.take(work, MACHINE)
    assert taken == pieces.Taken(str(left), str(left / build.EXTENSION))
    assert taken.parts == ("core", "extension")
    # They alone may be taken elsewhere, where they lose what is no content.
    elsewhere = shutil.copytree(left, tmp_path / "elsewhere")
    for path in elsewhere.iterdir():
        path.chmod(0o644)
    context.prebuilt = pieces.take(elsewhere, MACHINE).core
    core.run(context)  # compiles nothing
    assert context.compile("limits.cu") == elsewhere / "limits"
    assert subprocess.run([context.compile("limits.cu")], timeout=20).returncode == 0
    assert build.product(context, build.CORE_LIBRARY).parent == elsewhere


@pytest.mark.parametrize(
    ("key", "there", "reason", "core_fits"),
    [
        ("nvcc", "12.8", "nvcc: 12.8 there, 13.0 here", False),
        ("architecture", "100", "the GPU architecture: 100 there, 90 here", False),
        ("sources", "older", "the sources: older there, sources here", False),
        ("torch", "2.12.0", r"torch: 2.12.0 there, 2.11.0+cu130 here", True),
        ("python", ".cpython-310.so", "the Python tag: .cpython-310.so there", True),
    ],
)
def test_pieces_that_do_not_fit_are_named_and_built_anew(
    key: str, there: str, reason: str, core_fits: bool, work: Path
) -> None:
    file = leave(work) / "pieces.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: there}))
    taken = pieces.take(work, MACHINE)
    assert (bool(taken.core), taken.extension) == (core_fits, "")
    assert taken.reasons[0].startswith(reason)


def test_pieces_that_are_missing_or_do_not_load_are_not_taken(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = pieces.take(tmp_path, MACHINE)
    assert "holds no pieces.json" in nothing.reasons[0]
    leave(work, "ll128_probe")  # one that did not compile, of which an earlier one may lie there
    assert pieces.take(work, MACHINE).reasons[0].endswith("lacks litmus")
    leave(work, "extension")
    assert pieces.take(work, MACHINE).parts == ("core",)
    leave(work)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ldd").write_text("#!/bin/sh\necho \"/lib/libc.so.6: version 'GLIBC_9' not found\"\n")
    (tools / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    taken = pieces.take(work, MACHINE)
    assert taken.core == ""
    assert "GLIBC_9" in taken.reasons[0]


def test_a_prebuilt_extension_that_does_not_load_is_built_anew(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    monkeypatch.setattr(build, "make", lambda _, *targets, **__: made.extend(targets))
    monkeypatch.setattr(build, "torch_to_build_with", lambda: ("/torch", "2.11.0"))
    broken = tmp_path / "_C.so"
    broken.write_text("no library")
    context.prebuilt_extension = str(broken)
    use = extension.use

    def used(told: Context, made_of: Path) -> dict[str, object]:
        return use(told, made_of) if made_of == broken else {"cuda_devices": 0}

    monkeypatch.setattr(extension, "use", used)
    extension.run(context)
    assert made == ["_C"]
    # One that loads and sees no GPU is not built again.
    context.device, made[:] = "cuda", []
    monkeypatch.setattr(extension, "use", lambda *_: {"cuda_devices": 0})
    with pytest.raises(Failed, match="ringkern sees no GPU"):
        extension.run(context)
    assert made == []
    assert "file too short" in context.figures["prebuilt"]


def test_another_source_is_another_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("csrc/cuda", "cmake", "tests", "bench/gpu"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("CMakeLists.txt", "pyproject.toml", "csrc/cuda/ll.cu", "csrc/README.md"):
        (tmp_path / file).write_text("1")
    monkeypatch.setattr(pieces, "ROOT", tmp_path)
    first = pieces._digest()
    (tmp_path / "csrc/README.md").write_text("2")
    assert pieces._digest() == first
    (tmp_path / "csrc/cuda/ll.cu").write_text("2")
    assert pieces._digest() != first


# ---- the machine


def test_missing_parts_of_a_machine_are_named(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.loopback() == ""
    assert "python3-dev" in machine.python_headers(tmp_path)
    (tmp_path / "Python.h").touch()
    assert machine.python_headers(tmp_path) == ""
    text = "host_config.h:1: error: #error -- unsupported GNU version! gcc versions later than 15"
    assert "g++ is too new for this nvcc" in machine.refusal(text)
    assert "too old for this GPU" in machine.refusal("nvcc fatal: Unsupported gpu architecture")
    assert machine.refusal("x\nerror: y\n").endswith("error: y")
    assert "does not run" in machine.driver({"driver_cuda": "12.4", "nvcc": "13.0"})
    assert machine.driver({"driver_cuda": "13.0", "nvcc": "13.2"}) == ""
    assert machine.driver({"nvcc": "13.2"}) == ""
    monkeypatch.setattr(machine, "compilers", lambda _: "no nvcc")
    monkeypatch.setattr(machine, "python_headers", lambda _: "no Python.h")
    with pytest.raises(Failed, match=r"no Python\.h; no nvcc"):
        machine.run(context)
    assert context.figures["troubles"] == ["no Python.h", "no nvcc"]


def test_a_network_without_lo_is_told_and_lo_can_be_started() -> None:
    unshare = shutil.which("unshare")
    how = [unshare or "", "--map-root-user", "--net"]
    if not unshare or subprocess.run([*how, "true"], capture_output=True, timeout=20).returncode:
        pytest.skip("namespaces are not permitted here")
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from bench.gpu import alone, machine; "
        "print(machine.loopback()); print(alone.enter(True)); print(machine.loopback() or 'up')"
    )
    done = subprocess.run(
        [*how, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    down, alone_text, up = done.stdout.splitlines()
    assert "if lo is down: ip link set lo up" in down
    assert (alone_text, up) == ("without a network", "up")


def test_with_a_network_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alone.enter(False).startswith("with the network")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    alone.start_again([])  # comes back
    with socket.socket():
        pass


# ---- memory of others


def test_arrays_and_a_graphs_pool_are_checked(context: Context) -> None:
    assert arrays.found("cpu")[0] == "numpy"
    tally = cases.Tally(context)
    with Ring(["cpu"] * 3) as ring:
        arrays.check_ring(tally, ring, "cpu")
    assert (tally.cases, tally.wrong) == (3 * (2 + 1) * 3, [])

    class Idle:
        size = 3

        def all_reduce(self, tensors: Any) -> None:
            pass

    arrays.check_ring(tally, Idle(), "cpu")
    assert len(tally.wrong) == 27


def test_a_library_that_is_missing_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    name, reason = arrays.found("cuda:0")
    assert name == ""
    assert reason.startswith("skipped: no cupy (ModuleNotFoundError")
