"""A headless Chromium, driven over its DevTools protocol: what a test of a page needs and no more."""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import httpx2
import websockets.sync.client

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
WAIT_TIMEOUT_S = 120  # for a machine that does much else, and a server with sanitizers
MAX_MESSAGE_BYTES = 64 << 20


def find():
    """Path of a browser, or None."""
    chosen = os.environ.get("RUDDER_BROWSER")
    return shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, NAMES)), None)


class PageError(AssertionError):
    pass


class Page:
    """One tab. Everything that it logs, fetches or throws is kept from the start."""

    def __init__(self, address):
        self._open = contextlib.ExitStack()
        self._socket = self._open.enter_context(websockets.sync.client.connect(
            address, max_size=MAX_MESSAGE_BYTES, ping_interval=None))
        self._ids = itertools.count(1)
        self.errors = []  # of the console, of scripts, of the network
        self.requests = []  # addresses
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")

    def close(self):
        self._open.close()

    def _note(self, event):
        params = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))

    def call(self, method, **params):
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT_TIMEOUT_S))
            if message.get("id") == number:
                if "error" in message:
                    raise PageError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self._note(message)

    def eval(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                           userGesture=True)
        if "exceptionDetails" in result:
            raise PageError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def processor_seconds(self):
        """That the page's thread has taken: what a script costs on a machine that does much else, too."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "ThreadTime")

    def wait(self, expression, timeout=WAIT_TIMEOUT_S):
        """The value of the expression, once it is true."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # A node has no value of its own.
            if value := self.eval(f"((value) => value instanceof Node ? true : value)({expression})"):
                return value
            time.sleep(0.02)
        raise PageError(f"never true: {expression}\n{self.eval('document.body.innerText')}\n{self.errors}")

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    def size(self, width, height, dark=False, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def click(self, selector):
        """A press of the mouse in the middle of the element, wherever that is seen."""
        self.wait(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
        x, y = self.eval(f"""(() => {{
          const node = document.querySelector({json.dumps(selector)});
          node.scrollIntoView({{block: 'nearest'}});
          const box = node.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, code=0, text="", modifiers=0):
        extra = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code,
                      modifiers=modifiers, **extra)
            extra = {}

    def enter(self):
        self.key("Enter", 13, "\r")

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    def __init__(self, url):
        self._url = url

    def page(self):
        target = httpx2.put(f"{self._url}/json/new?about:blank", timeout=30).json()
        return Page(target["webSocketDebuggerUrl"])


@contextlib.contextmanager
def running():
    # The browser's helper processes write to its profile for a moment after it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Nothing but the server under test is there to be reached, and nothing is asked of the desktop.
        command = [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--disable-background-networking", "--disable-component-update", "--disable-extensions",
                   "--no-first-run", "--no-default-browser-check", "--force-color-profile=srgb",
                   "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            told = pathlib.Path(profile) / "DevToolsActivePort"
            deadline = time.monotonic() + START_TIMEOUT_S
            while not (told.exists() and told.read_text().count("\n")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the browser did not start: {command}")
                time.sleep(0.05)
            yield Browser(f"http://127.0.0.1:{told.read_text().splitlines()[0]}")
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
