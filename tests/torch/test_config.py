"""Settings from the environment: parsed strictly; an error names the variable."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from ringkern import arguments
from ringkern.config import ALGORITHMS, PROTOCOLS, Config, read


@pytest.fixture(autouse=True)
def _no_warning() -> None:
    warnings.simplefilter("error")


def test_defaults() -> None:
    assert read({}) == Config(protocol="auto", timeout_s=600.0, algorithm="auto")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol(protocol: str) -> None:
    assert read({"RINGKERN_PROTOCOL": protocol}).protocol == protocol


@pytest.mark.parametrize("protocol", ["", "tree", "LL", "ll128 ", "Simple"])
def test_unknown_protocol(protocol: str) -> None:
    with pytest.raises(ValueError, match="RINGKERN_PROTOCOL=") as caught:
        read({"RINGKERN_PROTOCOL": protocol})
    assert str(caught.value) == (
        f"RINGKERN_PROTOCOL={protocol!r}: choose one of auto, simple, ll, ll128"
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm(algorithm: str) -> None:
    assert read({"RINGKERN_ALGORITHM": algorithm}) == Config(algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["", "tree", "oneshot", "Ring", "two_shot "])
def test_unknown_algorithm(algorithm: str) -> None:
    with pytest.raises(ValueError, match="RINGKERN_ALGORITHM=") as caught:
        read({"RINGKERN_ALGORITHM": algorithm})
    assert str(caught.value) == (
        f"RINGKERN_ALGORITHM={algorithm!r}: choose one of auto, ring, one_shot, two_shot"
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600), ("0.5", 0.5), ("1e3", 1000), (" 7 ", 7)]
)
def test_timeout(text: str, seconds: float) -> None:
    assert read({"RINGKERN_TIMEOUT": text}).timeout_s == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "0.0001", "soon", "10s", "nan", "inf", "-inf", "1e400"]
)
def test_wrong_timeout(text: str) -> None:
    with pytest.raises(ValueError, match="RINGKERN_TIMEOUT=") as caught:
        read({"RINGKERN_TIMEOUT": text})
    assert repr(text) in str(caught.value)
    assert "give a number of seconds" in str(caught.value)


def test_dump_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read({"RINGKERN_DUMP_DIR": "/some/where"}) == Config(dump_dir=Path("/some/where"))
    monkeypatch.chdir(tmp_path)
    assert read({"RINGKERN_DUMP_DIR": "here"}).dump_dir == tmp_path / "here"
    with pytest.raises(ValueError, match="RINGKERN_DUMP_DIR='': give a directory, or unset it"):
        read({"RINGKERN_DUMP_DIR": ""})


@pytest.mark.parametrize("name", ["a", "node-17.rack#2", "x" * 64])
def test_host(name: str) -> None:
    assert read({"RINGKERN_HOST": name}) == Config(host=name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "x" * 65, "h\xe4sslich"])
def test_wrong_host(name: str) -> None:
    with pytest.raises(ValueError, match="RINGKERN_HOST=") as caught:
        read({"RINGKERN_HOST": name})
    assert str(caught.value) == (
        f"RINGKERN_HOST={name!r}: give a name of 1 to 64 ASCII characters without spaces, or unset "
        "it"
    )


@pytest.mark.parametrize("text", ["gloo", "cpu:mpi", "cpu:gloo,cuda:nccl", "NCCL", "my-own_1.x"])
def test_inter_host(text: str) -> None:
    assert read({"RINGKERN_INTER_HOST": text}) == Config(inter_host=text)


@pytest.mark.parametrize(
    "text", ["", "gloo,nccl", "cpu:", ":gloo", "tpu:gloo", "cpu:gloo,cpu:mpi", "cpu:gloo;cuda:x"]
)
def test_wrong_inter_host(text: str) -> None:
    with pytest.raises(ValueError, match="RINGKERN_INTER_HOST=") as caught:
        read({"RINGKERN_INTER_HOST": text})
    assert repr(text) in str(caught.value)
    assert "as gloo, nccl, mpi or ucc, or one for each device" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RINGKERN_PROTOKOL", "; did you mean RINGKERN_PROTOCOL?"),
        ("RINGKERN_ALGORYTHM", "; did you mean RINGKERN_ALGORITHM?"),
        ("RINGKERN_TIMEOUT_S", "; did you mean RINGKERN_TIMEOUT?"),
        ("RINGKERN_DUMPDIR", "; did you mean RINGKERN_DUMP_DIR?"),
        ("RINGKERN_INTERHOST", "; did you mean RINGKERN_INTER_HOST?"),
        ("RINGKERN_XYZ", ""),
    ],
)
def test_unknown_variable(name: str, hint: str) -> None:
    with pytest.warns(UserWarning, match="unknown environment variable") as caught:
        assert read({name: "1"}) == Config()
    assert [str(warning.message) for warning in caught] == [
        f"unknown environment variable {name}{hint}"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "RINGKERN_CUDA",
        "RINGKERN_CUDA_ARCHS",
        "RINGKERN_BUILD_DIR",
        "RINGKERN_CMAKE_ARGS",
        "RINGKERN_TORCH_SITE",
        "RINGKERN_FETCH_TORCH",
    ],
)
def test_variables_of_the_build_are_known(name: str) -> None:
    assert read({name: "1"}) == Config()


def test_other_variables_are_left_alone() -> None:
    assert read({"RINGKER_N": "1", "NCCL_PROTO": "LL", "ringkern_timeout": "x"}) == Config()


@pytest.mark.parametrize(
    ("environment", "given", "asked"),
    [
        ({"protocol": "ll128"}, {"deterministic": "size_invariant"}, ("auto", "auto", True, False)),
        ({"protocol": "ll"}, {"deterministic": "size_invariant"}, ("auto", "ll", True, False)),
        ({"algorithm": "ring"}, {"accumulate": "float32"}, ("auto", "auto", False, True)),
        ({"algorithm": "one_shot"}, {"protocol": "ll128"}, ("auto", "ll128", False, False)),
        ({"protocol": "ll128"}, {"algorithm": "one_shot"}, ("one_shot", "auto", False, False)),
        (
            {"deterministic": "size_invariant"},
            {"algorithm": "ring"},
            ("ring", "auto", False, False),
        ),
        ({"accumulate": "float32"}, {"protocol": "ll128"}, ("auto", "ll128", False, False)),
        ({"protocol": "ll128"}, {}, ("auto", "ll128", False, False)),
        # These two are not arguments: the extension raises the error.
        ({"protocol": "ll128", "algorithm": "one_shot"}, {}, ("one_shot", "ll128", False, False)),
    ],
)
def test_an_argument_goes_before_the_environment(
    environment: dict[str, str],
    given: dict[str, str],
    asked: tuple[str, str, bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments, "config", Config(**environment))
    names = ("algorithm", "protocol", "deterministic", "accumulate")
    assert arguments.way_asked(*(given.get(name, "auto") for name in names)) == asked


def test_an_argument_goes_before_the_environment_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "config", Config(protocol="simple"))
    way = arguments.way_asked("one_shot", "auto", "auto", "auto", "cuda")
    assert way == ("one_shot", "auto", False, False)
