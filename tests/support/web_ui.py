"""Drives the web pages in Chromium, and keeps what the browser complained about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

BROWSERS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
"""Debian's packages of the same names; the first takes two thirds of the processor time."""
CHROMIUM = next(filter(Path.exists, BROWSERS), BROWSERS[0])
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000
DESKTOP = (1280, 900)
PHONE = (375, 740)

expect.set_options(timeout=PATIENCE_MS)

# Controls that say nothing to who cannot see them: no text, label, aria-label or reference.
NAMELESS = """
() => {
  const shown = (one) => one.checkVisibility({ visibilityProperty: true });
  const text = (one) => (one ? one.textContent.trim() : "");
  const name = (one) => {
    const by = (one.getAttribute("aria-labelledby") ?? "").split(/\\s+/).filter(Boolean);
    const label = [...(one.labels ?? [])].map(text).join("");
    const own = one.matches("input, select, textarea") ? "" : text(one);
    const other = by.map((id) => text(document.getElementById(id))).join("");
    return one.getAttribute("aria-label") || other || label || own;
  };
  const controls = "a, button, input, select, textarea, summary, dialog, [tabindex], [role=img],"
    + "[role=meter], nav, section, table";
  return [...document.querySelectorAll(controls)]
    .filter((one) => shown(one) && one.id !== "main")
    .filter((one) => !(name(one) || one.caption?.textContent))
    .map((one) => one.outerHTML.slice(0, 200));
}
"""
# Elements that reach over the right edge of the window, for a message that helps.
WIDE = """
() => document.documentElement.scrollWidth <= window.innerWidth ? [] :
  [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > window.innerWidth + 1)
    .filter((one) => !one.closest(".scroll"))
    .map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`)
    .concat("page")
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


class WebUi:
    """One browser window, with a login of its own. Used as a context manager."""

    def __init__(self, browser: Browser, url: str, size: tuple[int, int] = DESKTOP) -> None:
        width, height = size
        self._context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True
        )
        self._context.set_default_timeout(PATIENCE_MS)
        self._url = url
        self._complaints: list[str] = []
        self.page: Page = self._context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self._complaints.append(f"thrown: {error}"))

    def __enter__(self) -> WebUi:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._context.close()
        if kind is None:
            self.check_complaints()

    def check_complaints(self) -> None:
        assert self._complaints == [], self._complaints

    def start_anew(self) -> None:
        """The overview, for the same user, without what the browser remembers of choices."""
        self._complaints.clear()
        self.page.evaluate("localStorage.clear(); localStorage.setItem('warren.loggedIn', 'true')")
        self.page.goto(self._url)
        self.until_refreshed()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            where = message.location.get("url", "")
            self._complaints.append(f"{message.type}: {message.text} ({where})")

    def forget_refusal(self, path: str) -> None:
        """Chromium complains of each refused request; one of these was meant to be."""
        found = [one for one in self._complaints if path in one and "Failed to load" in one]
        assert found, self._complaints
        self._complaints = [one for one in self._complaints if one not in found]

    def log_in(self, user: str = "guest", password: str = "guest") -> None:
        if not self.page.url.startswith(self._url):
            self.page.goto(self._url)
        self.page.get_by_label("User", exact=True).fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def enter(self, user: str = "guest", password: str = "guest") -> None:
        """Logs in and waits for the overview."""
        self.log_in(user, password)
        expect(self.heading("Overview")).to_be_visible()
        self.until_refreshed()

    def open(self, *names: str) -> None:
        """The page at an address of these names, refreshed once."""
        self.page.evaluate(
            "hash => { document.querySelector('.ticked').textContent = ''; location.hash = hash; }",
            "#/" + "/".join([quote(name, safe="") for name in names]),
        )
        self.until_refreshed()

    def until_refreshed(self) -> None:
        expect(self.page.locator(".ticked")).not_to_be_empty()

    def refresh(self) -> None:
        self.page.evaluate("document.querySelector('.ticked').textContent = ''")
        # On a phone it is in the menu.
        menu = self.page.get_by_role("button", name="Menu", exact=True)
        folded = menu.is_visible()
        if folded:
            menu.click()
        self.page.get_by_role("button", name="Refresh", exact=True).click()
        if folded:
            menu.click()
        self.until_refreshed()

    def heading(self, text: str) -> Locator:
        return self.page.get_by_role("heading", name=text, exact=True, level=1)

    def folded(self, title: str) -> Locator:
        """A part that can be folded."""
        part = self.page.locator("details").filter(
            has=self.page.get_by_role("heading", name=title, exact=True)
        )
        return part.last

    def unfold(self, title: str) -> Locator:
        """Opens a folded part, unless it is open, and returns it."""
        part = self.folded(title)
        if part.get_attribute("open") is None:
            part.locator("summary").first.click()
        return part

    def confirm(self, label: str) -> None:
        self.page.get_by_role("dialog").get_by_role("button", name=label, exact=True).click()

    def value(self, label: str) -> Locator:
        """What stands beside a label."""
        entry = self.page.locator("dl.facts > div").filter(
            has=self.page.locator("dt", has_text=label)
        )
        return entry.locator("dd").first

    def entry(self, label: str, name: str) -> Locator:
        """What stands beside a name in the table beside a label."""
        row = (
            self.value(label)
            .get_by_role("row")
            .filter(has=self.page.get_by_role("rowheader", name=name, exact=True))
        )
        return row.first.locator("td").first

    def expect_notice(self, text: str) -> None:
        expect(self.page.locator("#notices")).to_contain_text(text)

    def check_form(self) -> None:
        """Every control has a name, and nothing is wider than the window."""
        assert self.page.evaluate(NAMELESS) == [], self.page.url
        assert self.page.evaluate(WIDE) == [], self.page.url

    def picture(self, name: str) -> None:
        """Only where somebody wants to see it."""
        folder = os.environ.get("WARREN_SCREENSHOTS")
        if not folder:
            return
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            self.page.screenshot(path=f"{folder}/{name}-{scheme}.png", full_page=True)
        self.page.emulate_media(color_scheme="light")
