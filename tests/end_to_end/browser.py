"""A headless Chromium driven over its own debugging protocol: what a page logs, asks for and looks like."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Page:
    """One tab: commands go out, events are collected."""

    def __init__(self, address: str) -> None:
        import websocket

        self.socket = websocket.create_connection(address, timeout=60)
        self.events: list[dict[str, Any]] = []
        self.number = 0
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def evaluate(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def requests(self) -> list[str]:
        """Addresses the page asked for, itself and its embedded pictures left out."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:"))]

    def complaints(self) -> list[Any]:
        """Errors on the console, exceptions, and entries of the browser's own log."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [
            e for e in self.events
            if e["method"] in kinds or (e["method"] == "Runtime.consoleAPICalled" and e["params"]["type"] == "error")
        ]  # fmt: skip


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    assert CHROMIUM is not None
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not port_file.exists() or not port_file.read_text().strip():
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.1)
        port = port_file.read_text().splitlines()[0]
        tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30))
        yield Page(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
    finally:
        process.kill()
        process.wait()
