"""The command line as a whole: its table of commands, errors, exit codes, signals."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringkern import startup
from ringkern.tools import Command, launch, options, parsers
from ringkern.tools.program import COMMANDS, EXIT_CODES, main

LIMIT_S = 120
PROGRAM = [sys.executable, "-m", "ringkern"]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **variables},
    )


# ---- the table ----------------------------------------------------------------------------------


def test_help_lists_all_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(["--help"])
    assert exit_status.value.code == 0
    said = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name:<9}{command.help}\n" in said
    for code, meaning in EXIT_CODES:
        assert f"  {code:<5}{meaning}\n" in said


LOOK = """
import sys
sys.argv, sys.orig_argv = ["-m", *sys.argv[1:]], ["python", "-m", "ringkern", *sys.argv[1:]]
try:
    from ringkern.tools import main
    main()
finally:
    print(sorted({"torch", "ringkern.api", "ringkern.tools.bench.perf"} & set(sys.modules)))
"""


def test_help_loads_nothing() -> None:
    for arguments in (["--help"], ["--version"], ["bencj"]):
        done = subprocess.run(
            [sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.splitlines()[-1] == "[]", (arguments, done.stdout, done.stderr)


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "model", "--sizes", "8"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['ringkern.api', 'torch']"


def test_every_command_has_the_common_arguments() -> None:
    found = parsers()
    assert list(found) == [command.name for command in COMMANDS]
    meaning: dict[str, str] = {}
    for name, parser in found.items():
        actions = {flag: a for a in parser._actions for flag in a.option_strings}
        assert parser.prog == f"python -m ringkern {name}"
        assert parser.description
        assert actions["--json"] is actions["-J"], name
        assert actions["--timeout"] is actions["-T"], name
        if "--ranks" in actions:
            assert actions["--ranks"] is actions["-n"], name
        for action in parser._actions:
            for flag in action.option_strings:
                if len(flag) == 2:
                    assert meaning.setdefault(flag, action.dest) == action.dest, (name, flag)
        unexplained = [a.dest for a in parser._actions if not a.help and a.dest != "action"]
        assert unexplained == [], name


# The script that pip makes of an entry point.
SCRIPT = """
import sys
from ringkern.tools import main
if __name__ == "__main__":
    sys.exit(main())
"""


def test_the_script_is_the_same_program(tmp_path: Path) -> None:
    script = tmp_path / "ringkern"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), "bench", "--sise", "8"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ringkern bench: error: unknown argument '--sise'")
    # Its ranks are processes that load the whole package.
    command = "bench --vs none -b 8 -e 8 -c 0 --seconds 0.02"
    done = subprocess.run(
        [sys.executable, str(script), *command.split()],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def test_a_program_imports_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, argv in (
        (["python", "train.py", "-x"], ["train.py", "-x"]),
        (["python", "-m", "train", "a"], ["-m", "a"]),
        (["python", "-m", "bench.compare.worker", "a"], ["-m", "a"]),
        (["python", "-c", "import ringkern"], ["-c"]),
        (["python", "/bin/ringkern.py"], ["/bin/ringkern.py"]),
        (["python", "-c", "spawn_main()", "--fork"], ["/venv/bin/ringkern", "bench"]),
        (["python"], [""]),
        ([], []),
    ):
        monkeypatch.setattr(sys, "orig_argv", program)
        monkeypatch.setattr(sys, "argv", argv)
        assert not startup.by_command_line(), program
    for program, argv in (
        (["python", "-X", "dev", "-m", "ringkern", "env", "-J"], ["-m", "env", "-J"]),
        (["python", "-mringkern"], ["-m"]),
        (["/venv/bin/python", "/venv/bin/ringkern", "env"], ["/venv/bin/ringkern", "env"]),
    ):
        monkeypatch.setattr(sys, "orig_argv", program)
        monkeypatch.setattr(sys, "argv", argv)
        assert startup.by_command_line(), program


# ---- errors -------------------------------------------------------------------------------------


MISTAKES = (
    ("", "a command is required: bench, doctor"),
    ("bencj", "there is no command 'bencj'; did you mean bench?"),
    ("xyz", "there is no command 'xyz'; choose one of bench"),
    ("--versoin", "unknown argument '--versoin'; did you mean --version?"),
    ("bench --stepfaktor 2", "unknown argument '--stepfaktor'; did you mean --stepfactor?"),
    ("bench --warmups=3", "unknown argument '--warmups'; did you mean --warmup?"),
    ("bench eight", "unknown argument 'eight'"),
    ("bench -b 4x", "as 64K"),
    ("bench -b 8 -e 4", "minbytes <= maxbytes"),
    ("bench -b 0", "0 < minbytes"),
    ("bench -f 1", "from 2 on"),
    ("bench -i 0", "above 0"),
    ("bench -i 8 -f 2", "no -f"),
    ("bench -n 0", "from 1 on"),
    ("bench --seconds nan", "seconds above 0"),
    ("bench -b 8T", "'8T' is no size"),
    ("bench -o summ", "choose one of sum, prod, min, max"),
    ("bench -o summ", "did you mean sum?"),
    ("bench --proto l128", "did you mean ll128?"),
    ("bench -d bflaot16", "did you mean bfloat16?"),
    ("bench -d flaot", "did you mean float?"),
    ("bench --vs glou", "choose gloo or none"),
    ("bench -b 1000000G -e 1000000G", "2 ranks need at least 2048000000 MiB"),
    ("trace --size 1000000G", "2 ranks need at least 6144000000 MiB"),
    ("bench -J /no/such/place/out.json", "/no/such/place/out.json: there is no such directory"),
    ("bench -J /", "is a directory"),
    ("bench -J /proc/out.json", "/proc: no file can be made there"),
    ("explain --plot /proc/out.svg", "/proc: no file can be made there"),
    ("model --plot /proc/out.svg", "/proc: no file can be made there"),
    ("tune --out /proc/out.json", "/proc: no file can be made there"),
    ("tune --plot /no/such/place/out.png", "there is no such directory"),
    ("trace --out /proc", "/proc: no file can be made there"),
    ("trace --out /proc/new", "--out /proc/new: No such file or directory; give another place"),
    ("trace --size 0", "an empty tensor sends nothing; give 1 or more"),
    ("bench --timeout 0", "seconds above 0"),
    ("explain 8 -d float17", "unknown dtype 'float17'; choose one of float32"),
    ("explain 8 -n 0", "from 1 on"),
    ("explain --json 64K", "put --json last"),
    ("model --topology dgx-h1000", "recorded machines are"),
    ("model -n 0", "from 1 on"),
    ("tune -n 1", "from 2 to 64"),
    ("doctor -n two", "from 1 on"),
)


def test_mistakes_are_answered_by_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("ranks were started"))
    for arguments, said in MISTAKES:
        with pytest.raises(SystemExit) as exit_status:
            main(arguments.split())
        assert exit_status.value.code == 2, arguments
        shown = capsys.readouterr()
        assert said in shown.err
        assert "--help` says what it takes" in shown.err, arguments
        assert shown.out == "", arguments


def test_a_picture_takes_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    for command in ("explain", "model", "tune"):
        with pytest.raises(SystemExit) as exit_status:
            main([command, "--plot", "out.png"])
        assert exit_status.value.code == 2
        assert "pip install matplotlib" in capsys.readouterr().err


def test_under_torchrun_one_rank_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected in (("0", "-n 4: torchrun has started 2 ranks"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as exit_status:
            main(["bench", "-n", "4"])
        assert exit_status.value.code == 2
        said = capsys.readouterr().err
        assert expected in said
        assert expected or said == ""
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit):
        main(["bench"])
    assert "or unset RANK" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() == 0:
        file = "/proc/version"  # which not even root can write
    else:
        file = str(tmp_path / "locked.json")
        Path(file).touch(0o400)
    assert main(["model", "--sizes", "8", "--json", file]) == 1
    assert capsys.readouterr().err.startswith("python -m ringkern model: error: [Errno ")


def test_every_command_reports_a_failed_import() -> None:
    done = run("explain", "8", RINGKERN_PROTOCOL="tree")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "python -m ringkern: error: ValueError: RINGKERN_PROTOCOL='tree': choose one of auto, "
        "simple, ll, ll128",
        "run `python -m ringkern doctor`: it looks for the cause and a fix",
    ]


def test_a_reader_that_has_seen_enough() -> None:
    with subprocess.Popen(
        [*PROGRAM, "model", "--published"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(LIMIT_S) == 1
    assert said == ""


def test_a_command_ends_at_its_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    class Module:
        DESCRIPTION = "waits"

        @staticmethod
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            options.add_timeout(parser, 600.0)

        @staticmethod
        def run(args: argparse.Namespace) -> int:
            time.sleep(LIMIT_S)
            return 0

    name = "tests_cli_that_waits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, Module)  # type: ignore[arg-type]
        command = Command("wait", name, "waits")
        patch.setattr("ringkern.tools.program.COMMANDS", (command,))
        assert main(["wait", "--timeout", "0.05"]) == 1
    assert (
        "wait: error: not finished after 0.05 s; give a longer --timeout" in capsys.readouterr().err
    )


# ---- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("bench --vs none -n 1 -b 8 -e 8 --seconds 0.02", "rows"),
        ("doctor --no-rings", "findings"),
        ("env", "loaded"),
        ("model --sizes 8", "rows"),
        ("model --published", "rows"),
    ],
)
def test_json_alone_on_stdout_or_in_a_file(
    command: str, key: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    assert main([*command.split(), "--json"]) == 0
    assert key in json.loads(capfd.readouterr().out)
    assert main([*command.split(), "-J", str(file)]) == 0
    assert key in json.loads(file.read_text())
    beside = capfd.readouterr().out
    assert beside
    assert not beside.startswith("{")


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "8", "1M", "--json"]) == 0
    assert [one["nbytes"] for one in json.loads(capsys.readouterr().out)] == [8, 1 << 20]
    assert main(["explain", "8", "--json=-"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
