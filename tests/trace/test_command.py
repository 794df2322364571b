"""``python -m ringkern trace``: records real calls, writes its files, and draws them again."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringkern.__main__ import main
from ringkern.tools import launch
from ringkern.tools.trace.events import Trace
from tests import forked
from tests.trace import synthetic

LIMIT_S = 120
FILES = {"events.json", "ring.html", "timeline.svg", "perfetto.json"}


def run(*arguments: str, module: tuple[str, ...] = ("ringkern",)) -> str:
    done = subprocess.run(
        [forked.python(), "-m", *module, "trace", *arguments],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_files(folder: Path, names: set[str]) -> Trace:
    """Checks that all files are there and no others, whole, and of the same trace."""
    assert {file.name for file in folder.iterdir()} == names
    trace = Trace.from_json((folder / "events.json").read_text())
    trace.check()
    if "ring.html" in names:
        page = (folder / "ring.html").read_text()
        data = page.split('id="trace">')[1].split("</script>")[0]
        times = [
            (event.start_ns, event.end_ns)
            for rank in range(trace.ranks)
            for event in trace.of(rank)[: 2 * trace.ranks - 1]
        ]
        found = [tuple(step[:2]) for steps in json.loads(data)["times"][0][0] for step in steps]
        assert found == times
    if "timeline.svg" in names:
        root = ElementTree.parse(folder / "timeline.svg").getroot()
        bars = [g for g in root.iter() if g.get("id", "").startswith("verb-")]
        assert len(bars) == len(trace.events)
    if "perfetto.json" in names:
        chrome = json.loads((folder / "perfetto.json").read_text())
        verbs = [e for e in chrome["traceEvents"] if e.get("cat") == "verb"]
        assert len(verbs) == len(trace.events)
    return trace


def test_records_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    folder = tmp_path / "new" / "folder"
    said = run("-n", "3", "--size", "64K", "--out", str(folder))
    trace = check_files(folder, FILES)
    assert (trace.ranks, trace.count, trace.protocol) == (3, 16384, "simple")
    assert trace.command == f"python -m ringkern trace -n 3 --size 64K --out {folder}"
    lines = said.splitlines()
    assert lines[0].startswith("all_reduce of 64K (float32) over 3 ranks, simple, cpu: ")
    for rank, line in enumerate(lines[1:4]):
        # A rank that comes last may wait for less than the summary tells apart.
        assert re.match(rf"  rank {rank} (waited \d+%: |hardly waited$)", line), line
    for name in FILES:
        assert str(folder / name) in said
    assert "https://ui.perfetto.dev" in said


def test_json_alone_and_drawing_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    call = ("-n", "2", "--size", "6", "-d", "half", "--proto", "ll", "--formats", "html")
    found = json.loads(run(*call, "--out", str(first), "--json"))
    trace = check_files(first, {"events.json", "ring.html"})
    assert found["call"]["dtype"] == "float16"
    assert found["call"]["protocol"] == "ll"
    assert found["call_ns"] == trace.duration_ns
    assert found["files"] == {
        "events": str(first / "events.json"),
        "html": str(first / "ring.html"),
    }
    for one in found["ranks"]:
        waited = sum(one["waited_ns_for"].values()) + one["late_ns"]
        assert waited == sum(event.wait_ns for event in trace.of(one["rank"]))
        assert one["waited_share"] == pytest.approx(waited / one["took_ns"], abs=1e-4)
    assert main(["trace", "--from", str(first / "events.json"), "--formats", "html,chrome",
                 "--out", str(second)]) == 0  # fmt: skip
    assert check_files(second, {"events.json", "ring.html", "perfetto.json"}) == trace
    assert (second / "ring.html").read_bytes() == (first / "ring.html").read_bytes()


def test_joins_torchrun(tmp_path: Path) -> None:
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ringkern")
    said = run("--size", "1K", "--formats", "html", "--out", str(tmp_path / "out"), module=torchrun)
    assert check_files(tmp_path / "out", {"events.json", "ring.html"}).ranks == 2
    assert said.count("all_reduce of 1K") == 1, "one rank prints"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-n 1", "sends nothing; give -n 2"),
        ("--size 1T", "as 64K"),
        ("--size 1000G", "give a smaller --size or -n"),
        ("--proto tree", "ll128"),
        ("-d float17", "float32"),
        ("--formats html,pgn", "did you mean png"),
        ("--formats ,", "choose of html, svg, png, chrome"),
        ("--loops 1-2", "as 0:3"),
        ("--out {file}", "is a file; give a directory"),
        ("--device cuda", "leave it out: ranks on a CPU"),
        ("--from {file}", "test_command.py: "),
    ],
)
def test_bad_arguments(
    arguments: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "launch", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as exit_status:
        main(["trace", *arguments.format(file=__file__).split()])
    assert exit_status.value.code == 2
    error = capsys.readouterr().err
    assert said in error.replace("Or leave it out", "leave it out")
    assert "Traceback" not in error


def test_drawing_again_needs_no_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks would write the same files."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "events.json").write_text(synthetic.make(2).to_json())
    with pytest.raises(SystemExit) as exit_status:
        main(["trace", "--from", str(tmp_path / "events.json"), "--out", str(tmp_path / "out")])
    assert exit_status.value.code == 2
    assert "without torchrun" in capsys.readouterr().err


def test_a_recording_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = synthetic.make(2)
    halved = dataclasses.replace(trace, events=trace.events[:-1])
    (tmp_path / "events.json").write_text(halved.to_json())
    with pytest.raises(SystemExit) as exit_status:
        main(["trace", "--from", str(tmp_path / "events.json"), "--formats", "chrome"])
    assert exit_status.value.code == 2
    assert "events where the schedule has" in capsys.readouterr().err


def test_a_recording_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--from", "/no/such/events.json"]) == 1
    assert "/no/such/events.json" in capsys.readouterr().err


def test_loops_that_the_recording_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    (tmp_path / "events.json").write_text(synthetic.make(2).to_json())
    given = ["trace", "--from", str(tmp_path / "events.json"), "--loops", "4"]
    with pytest.raises(SystemExit) as exit_status:
        main([*given, "--out", str(tmp_path / "out")])
    assert exit_status.value.code == 2
    assert "the trace has loops 0 to 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requested picture is an error; one that was not requested is left out with a message."""
    (tmp_path / "events.json").write_text(synthetic.make(2).to_json())
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    given = ["trace", "--from", str(tmp_path / "events.json"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as exit_status:
        main([*given, "--formats", "png"])
    assert exit_status.value.code == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert main(given) == 0
    assert "pip install matplotlib" in capsys.readouterr().out
    check_files(tmp_path / "out", FILES - {"timeline.svg"})
    assert main([*given, "--formats", "html"]) == 0
    assert "pip install" not in capsys.readouterr().out
