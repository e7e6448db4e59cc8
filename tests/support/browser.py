"""Headless Chromium, and what it shows of a page."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402 (selenium may be missing)
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402 (as above)
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402 (as above)

EVIL = (
    "</script><script>document.title = 'owned'</script><img src=x onerror=\"document.title='x'\">",
    "<!--<script>",
    "a\x00b\x1b[31m\r\n\u2028c",
    "annex\u202egnp.exe",
    "n" * 10_000,
    "\ud800 alone \udfff",
    "$style ${data} &lt;b&gt; \\u003c",
    "' onfocus=alert(1) autofocus='",
)


class Browser:
    """Headless Chromium, and what was noticed while it showed a page."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def show(self, page: str, *, width: int = 1600, height: int = 1200, dark: bool = False) -> None:
        self.resize(width, height)
        self.emulate(dark=dark)
        for log in ("browser", "performance"):
            self.driver.get_log(log)  # takes what others left
        path = self.folder / "page.html"
        path.write_text(page, encoding="utf-8")
        self.driver.get(path.as_uri())

    def resize(self, width: int, height: int = 1200) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def emulate(self, *, dark: bool = False, media: str = "") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": [scheme]}
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def hover(self, selector: str) -> str:
        """Rest the pointer in the middle of an element; return the tooltip's text."""
        element = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", element)
        ActionChains(self.driver).move_by_offset(1, 1).move_to_element(element).perform()
        return self.text("#tip")

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def wait(self, script: str) -> None:
        """Wait for what an event brings about."""
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: self.run(script))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Name what was asked for since the page was, itself included."""
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def overflow(self) -> int:
        """Return the pixels by which the page is wider than its window."""
        return int(self.run("return document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser, program = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("chromium and chromedriver are not both installed")
    folder = tmp_path_factory.mktemp("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    arguments = ["--headless=new", f"--user-data-dir={folder / 'profile'}", "--disable-gpu"]
    arguments += ["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # which root can't have
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(program))  # on a free port
    try:
        yield Browser(driver, folder)
    finally:
        driver.quit()


_CONTRAST = """
const channels = (colour) => {
  const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
  return colour.startsWith("color(") ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
};
const over = ([r, g, b, a], below) => [r, g, b].map((one, n) => one * a + below[n] * (1 - a));
const light = (colour) => {
  const [r, g, b] = colour.map((one) => one / 255)
    .map((one) => one <= .04045 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((one, two) => one - two);
  return (high + .05) / (low + .05);
};
"""

POOR_CONTRAST = (
    _CONTRAST
    + """const ground = (element) => {
  if (!element) return [255, 255, 255];
  const own = channels(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const poor = [];
let seen = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
  const {color, fill} = getComputedStyle(element);
  const shown = element instanceof SVGElement ? fill : color;
  const below = ground(element), ink = over(channels(shown), below);
  seen += 1;
  if (contrast(below, ink) < 4.5) poor.push(`${element.outerHTML} ${ink} on ${below}`);
}
return [seen, poor];
"""
)

POOR_CONTRAST_OF_A_PICTURE = (
    _CONTRAST
    + """
const area = ({width, height}) => width * height;
const around = (text) => [...document.querySelectorAll("svg rect")].filter((rect) => {
  const [outer, inner] = [rect.getBBox(), text.getBBox()];
  return outer.x <= inner.x && outer.x + outer.width >= inner.x + inner.width
    && outer.y <= inner.y && outer.y + outer.height >= inner.y + inner.height;
}).sort((one, two) => area(one.getBBox()) - area(two.getBBox()))[0];
const fill = (element) => element && channels(getComputedStyle(element).fill);
const all = [...document.querySelectorAll("svg text")];
const poor = all.filter((text) => {
  const below = fill(around(text));
  return !below || contrast(below.slice(0, 3), fill(text).slice(0, 3)) < 4.5;
});
return [all.length, poor.map((text) => text.textContent)];
"""
)
