"""Every block of README, quickstart and how-to pages works as it stands, in the page's order."""

from __future__ import annotations

import doctest
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import forked, needs
from tests.docs import runner
from tests.docs.blocks import (
    HOWTO,
    LANGUAGES,
    PAGES,
    ROOT,
    Block,
    blocks_of,
    missing_lines,
    programs_of,
    said_to_print,
)
from tests.docs.commands import needs_a_clone, run_elsewhere
from tests.docs.runner import environment, run

LIMIT_S = 150  # of a block
ALL = [*PAGES, *HOWTO]
OPTIONAL = ("accelerate", "deepspeed", "lightning")  # packages of requirements/full.txt


def id_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runnable(block: Block) -> str:
    """Returns the commands of a block of sh that are run here."""
    return "\n".join(c for c in block.commands if not needs_a_clone(c) and not run_elsewhere(c))


def marks(page: Path) -> list[pytest.MarkDecorator]:
    text = page.read_text()
    return [needs.package(name) for name in OPTIONAL if f"\nimport {name}\n" in text]


RUN = [
    pytest.param(page, marks=marks(page))
    for page in ALL
    if any(block.language == "pycon" or runnable(block) for block in blocks_of(page))
]


def check(block: Block, folder: Path, printed: str) -> None:
    env = environment()
    # Two programs in three start torch; `make readme` has those of the first two pages start it.
    env |= {"PATH": f"{forked.path()}:{env['PATH']}", "PYTHON_EXEC": forked.python()}
    done = run(runnable(block), folder, LIMIT_S, env)
    assert done.status == 0, f"{block}: exit status {done.status}\n{block.text}\n{done.output}"
    missing = missing_lines(printed, done.output)
    assert not missing, f"{block}: does not print {missing}\n{done.output}"


def check_all(page: Path, folder: Path) -> None:
    """Runs the blocks of sh of a page, in their order."""
    blocks = blocks_of(page)
    for name, text in programs_of(blocks).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    printed = said_to_print(blocks)
    for block in blocks:
        if block.language == "sh" and runnable(block):
            check(block, folder, printed.get(block, ""))


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """Runs the pages that are tested two at a time: most of their time is torch being loaded."""
    pages = [
        item.callspec.params["page"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "runs" in item.fixturenames
    ]
    with ThreadPoolExecutor(2) as pool:
        folder = tmp_path_factory.mktemp("pages")
        for page in pages:
            (folder / page.stem).mkdir()
        yield {page: pool.submit(check_all, page, folder / page.stem) for page in pages}
        pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", RUN, ids=id_of)
def test_blocks_work_as_they_stand(page: Path, runs: dict[Path, Future[None]]) -> None:
    runs[page].result()
    names: dict[str, object] = {}
    for block in blocks_of(page):
        if block.language == "pycon":
            test = doctest.DocTestParser().get_doctest(block.text, names, str(block), None, None)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            names = test.globs


def test_every_program_is_run() -> None:
    """A command of the page runs it; for a program in a block of text, the text beside it names the
    requirement.
    """
    for page in ALL:
        check_programs(blocks_of(page))


def check_programs(blocks: list[Block]) -> None:
    commands = [block.text for block in blocks if block.language in ("sh", "text")]
    for block in blocks:
        assert block.language in LANGUAGES, f"{block}: {block.language!r} would not be run"
        if block.language == "python":
            assert block.name, f"{block}: its first line is to be its name, as '# first.py'"
            compile(block.text, str(block), "exec")
            assert any(block.name in text for text in commands), f"{block}: nothing runs it"
            if "/" in block.name:  # it is in the repository
                assert block.text == (ROOT / block.name).read_text(), f"{block}: {block.name}"


def test_the_first_two_pages_run_something() -> None:
    for page in PAGES:
        assert any(runnable(block) for block in blocks_of(page))


# ---- finding and running the blocks -------------------------------------------------------------

PAGE = """\
```sh
python program.py
```

```text
one ... three
```

- indented:

  ```python
  # program.py
  print("one two three")
  ```
"""


def made(folder: Path, text: str) -> list[Block]:
    page = folder / "page.md"
    page.write_text(text)
    return blocks_of(page)


def run_page(folder: Path, text: str) -> None:
    blocks = made(folder, text)
    for name, program in programs_of(blocks).items():
        (folder / name).write_text(program)
    check(blocks[0], folder, said_to_print(blocks)[blocks[0]])


def test_a_page(tmp_path: Path) -> None:
    blocks = made(tmp_path, PAGE)
    assert [(b.language, b.line, b.name) for b in blocks] == [
        ("sh", 1, None),
        ("text", 5, None),
        ("python", 11, "program.py"),
    ]
    run_page(tmp_path, PAGE)


def test_text_behind_words_is_not_what_is_printed(tmp_path: Path) -> None:
    assert said_to_print(made(tmp_path, PAGE.replace("\n\n```text", "\n\nSo:\n\n```text"))) == {}


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("python program.py", "python other.py", "exit status 2"),
        ("python program.py", "false\npython program.py", "exit status 1"),
        ("python program.py", "false | cat\npython program.py", "exit status 1"),
        ("one ... three", "one ... four", "does not print"),
        ('print("one', 'exit("one', "exit status 1"),
    ],
)
def test_a_page_that_is_wrong(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        run_page(tmp_path, PAGE.replace(right, wrong))


def test_commands_of_a_block(tmp_path: Path) -> None:
    text = "# first\npip install -e .   # why\na \\\nb\n\nmake demo\n"
    [block] = made(tmp_path, f"```sh\n{text}```\n")
    assert block.commands == ["pip install -e .   # why", "a  b", "make demo"]
    assert runnable(block) == "a  b"


@pytest.mark.parametrize("command", ["pip install ringkern", "make demolish", "python a.py # b"])
def test_commands_in_no_list_are_run(command: str) -> None:
    assert not needs_a_clone(command)
    assert run_elsewhere(command) is None


@pytest.mark.parametrize("on_term", ["-", "''"])  # it ends; it does not care
def test_nothing_outlives_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_term: str
) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1)
    # In a session of its own, like the ranks of torchrun.
    rank = f"trap {on_term} TERM; echo $$ > pid; exec sleep 600"
    with pytest.raises(TimeoutError, match="begun"):
        run(f'echo begun; setsid bash -c "{rank}" & wait'.replace("$$", "\\$\\$"), tmp_path, 2, {})
    process = Path("/proc") / (tmp_path / "pid").read_text().strip()
    assert not process.exists() or "sleep" not in (process / "cmdline").read_text()


def test_the_programs_of_this_environment_are_found() -> None:
    assert shutil.which("torchrun", path=environment()["PATH"])
