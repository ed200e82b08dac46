#!/usr/bin/env python3
"""Makes docs/figures/face.png: the page on the demo model, steered by a mood, with the probe's heat map.

    tools/setup.sh build test && tools/build.sh release rudder
    .venv/bin/python tools/face_screenshot.py [FILE]
"""

import pathlib
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import browser as chromium  # noqa: E402
from conftest import serving  # noqa: E402
from test_face import STORY, answer, fill, say, train_mood  # noqa: E402

SIZE = (1280, 860)
LOAD_S = 40  # of pictures


def load(server, going):
    """Clients that come and go, for the pictures of the server to show something."""
    client = server.client()
    turn = 0
    while not going.is_set():
        turn += 1
        for _ in range(1 + turn % 5):
            client.completions.create(model="rudder-demo", prompt=f"{STORY * 6} {turn % 3}", max_tokens=30 + turn % 4 * 40,
                                      extra_body={"ignore_eos": True})
        going.wait(0.3 + turn % 3 * 0.5)


def take(page, target):
    fill(page, "temperature", "0")
    page.eval("document.getElementById('probe').selectedIndex = 1")
    page.wait(f"performance.now() > {LOAD_S * 1000}", timeout=2 * LOAD_S)
    for key, code, presses, topic in (("ArrowLeft", 37, 16, "kite"), ("ArrowRight", 39, 32, "boat")):
        page.eval("document.getElementById('scale-mood').focus()")
        for _ in range(presses):
            page.key(key, code)
        say(page, f"Tell me a story about a {topic}.")
        answer(page)
    page.screenshot(target)


def main():
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "figures" / "face.png"
    with tempfile.TemporaryDirectory() as folder, chromium.running() as browser:
        mood = train_mood(pathlib.Path(folder))
        flags = ("--enable-steering", "--steering-module", f"mood={mood}", "--capture-memory-mb", "16",
                 "--kv-cache-memory-bytes", "4M")
        with serving(*flags) as server:
            page = browser.page()
            page.size(*SIZE)
            page.open(server.url + "/")
            going = threading.Event()
            threads = [threading.Thread(target=load, args=(server, going)) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                take(page, target)
            finally:
                going.set()
                for thread in threads:
                    thread.join()
            page.close()
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
