"""A headless browser that is on this machine, with a page in it, and what the page shows."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringkern.tools.trace.events import Trace
from ringkern.tools.trace.page import page
from tests import needs

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)

# Everything in the page that shows the position of chunks.
STATE = """() => {
  const of = (node) => ({...node.dataset});
  const blocks = (node) => [...node.querySelectorAll(".block")].map((block) => {
    const height = (kind) => block.querySelector(kind).getBoundingClientRect().height;
    return {...of(block), title: block.querySelector("title").textContent,
            filled: height(".fill") / height(".ground"), busy: block.classList.contains("busy")};
  });
  const now = document.querySelector("#timeline .now");
  return {
    ranks: [...document.querySelectorAll("#ring .rank")].map((node) =>
      ({...of(node), name: node.querySelector(".name").textContent,
        text: node.querySelector(".verb").textContent, blocks: blocks(node)})),
    tokens: [...document.querySelectorAll("#ring .token")].map((node) =>
      ({...of(node), block: blocks(node)[0]})),
    phase: document.getElementById("phase").textContent,
    waiting: document.getElementById("waiting").textContent,
    rows: [...document.querySelectorAll("#deeds tbody tr")].map((row) =>
      [...row.children].map((cell) => cell.textContent)),
    now: {...of(now), rects: [...now.querySelectorAll("rect")].map((rect) =>
      ({...of(rect), x: +rect.getAttribute("x"), width: +rect.getAttribute("width")}))},
    cursor: document.getElementById("cursor").getAttribute("points").split(" ").map((point) =>
      point.split(",").map(Number)),
    slider: document.getElementById("step").valueAsNumber,
    playing: document.getElementById("play").getAttribute("aria-pressed") === "true",
    hash: location.hash,
  };
}"""


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """Yields a browser; the test is skipped, with the reason, where there is none."""
    api = needs.module("playwright.sync_api")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


def written(trace: Trace, folder: Path) -> Path:
    """Returns the page of a trace, in a file."""
    file = folder / "a page.html"
    file.write_text(page(trace), encoding="utf-8")
    return file


class Shown:
    """A page in a tab, by ``file://``; its console messages, and its network requests."""

    def __init__(self, context: Any, file: Path, hash: str = "", *, clock: bool = False) -> None:
        self.tab = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        if clock:
            self.tab.clock.install(time=0)
        self.url = file.as_uri()
        self.tab.goto(self.url + hash)
        if clock:
            self.tab.clock.pause_at(3_600_000)  # from here on, the test advances time

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.tab.evaluate(STATE)
        return found

    def slide(self, step: int) -> None:
        """Moves the slider by the mouse."""
        self.tab.evaluate(
            "(step) => { const slider = document.getElementById('step'); slider.value = step;"
            "slider.dispatchEvent(new Event('input', {bubbles: true})); }",
            step,
        )

    def text(self, selector: str) -> str:
        return str(self.tab.inner_text(selector))
