"""A headless Chromium driven over its DevTools protocol through a pipe."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)

_TIMEOUT_SECONDS = 60


def find_chromium() -> str | None:
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A context manager of one browser with one tab."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, answers = os.pipe(), os.pipe()
        # The protocol's pipes are file descriptors 3 and 4 of the browser.
        words = ["bash", "-c", 'exec "$@" 3<&"${IN}" 4>&"${OUT}"', "browser", program, *FLAGS]
        self._process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            env={**os.environ, "IN": str(commands[0]), "OUT": str(answers[1]), "HOME": str(profile)},
            pass_fds=(commands[0], answers[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands[0])
        os.close(answers[1])
        self._write, self._read = commands[1], answers[0]
        self._buffer, self._count = b"", 0
        self._session: str | None = None
        self.events: list[dict] = []

    def __enter__(self) -> Browser:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **params: object) -> dict:
        """Call a method of the protocol and return its result; events before the answer are kept."""
        self._count += 1
        session = {} if self._session is None else {"sessionId": self._session}
        data = json.dumps({"id": self._count, "method": method, "params": params, **session}).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (answer := self._next(deadline)).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self, deadline: float) -> dict:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, *, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        """Load a page in a window of the given width and wait until it is complete."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(deadline))

    def evaluate(self, expression: str) -> object:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def press_enter(self) -> None:
        """Press and release the Enter key."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def click(self, selector: str) -> None:
        """Scroll to an element and click on its center."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        assert isinstance(box, list)
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", buttons=1, **where)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", buttons=1, **where)

    def complaints(self) -> list[str]:
        """Return errors and warnings in the console and the log since the page was opened."""
        messages = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.consoleAPICalled" and params.get("type") in ("error", "warning", "assert"):
                messages.append(str(params.get("args")))
            elif method == "Runtime.exceptionThrown":
                messages.append(str(params.get("exceptionDetails")))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                messages.append(params["entry"]["text"])
        return messages

    def requests(self) -> list[str]:
        """Return the addresses requested since the page was opened, without data inside the page."""
        sent = (e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [
            params["request"]["url"] for params in sent if not params["request"]["url"].startswith("data:")
        ]
