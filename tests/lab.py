"""JupyterLab in headless Chromium for tests: a server, a page in it, its notebook's model, and what the eye would see
of an output.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

import helpers

PICTURES = Path(__file__).resolve().parent.parent / "build" / "screenshots"  # not in git
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    "@jupyterlab/notebook-extension:tracker": {
        "windowingMode": "none"
    },  # every cell is drawn, wherever the page is scrolled
}
NOTEBOOK = "window.jupyterapp.shell.currentWidget"
PATIENCE_S = 240  # until something fails that a busy machine only does late


def chromium() -> str:
    "Debian's Chromium. Without it the test is skipped, but fails in continuous integration, which installs it."
    if found := shutil.which("chromium") or shutil.which("chromium-browser"):
        return found
    if os.environ.get("CI") == "true":
        pytest.fail("chromium is missing: .ci/run installs it")
    pytest.skip("there is no chromium here: apt-get install chromium")


def write_notebook(path: Path, *cells: str) -> Path:
    "A notebook of code cells, not run yet."
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells], metadata={"kernelspec": kernel}
        ),
        path,
    )
    return path


class Server:
    """A server of JupyterLab, or of Notebook 7 with `app="notebook"`, for `folder`, with settings of its own. To be
    used with `with`."""

    def __init__(self, folder: Path, app: str = "jupyterlab"):
        self.folder, self.url, self.app = folder, "", app
        self.own = folder.parent / f"{folder.name}-of-jupyter"

    def __enter__(self) -> "Server":
        for attempt in range(3):
            self._start()
            try:
                self.url = helpers.wait_for(self._address, "JupyterLab's address")
                return self
            except BaseException:
                self.__exit__()
                if attempt == 2 or "already in use" not in self._said():  # its port, between choice and use
                    raise
        raise AssertionError("unreachable")

    def _said(self) -> str:
        return (self.own / "server.log").read_text(errors="replace")

    def _start(self) -> None:
        (self.own / "config" / "labconfig").mkdir(parents=True, exist_ok=True)
        (self.own / "config" / "labconfig" / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "IPYTHONDIR": "ipython",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }
        environ = {
            **helpers.clean_environ(),
            **{name: str(self.own / place) for name, place in folders.items()},
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        words = [
            "--allow-root",
            "--no-browser",
            "--ServerApp.port=0",
            "--IdentityProvider.token=",
            "--ServerApp.password=",
            "--ServerApp.use_redirect_file=False",
            "--ServerApp.terminals_enabled=False",
            "--LabApp.expose_app_in_browser=True",
            "--JupyterNotebookApp.expose_app_in_browser=True",
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            f"--ServerApp.root_dir={self.folder}",
        ]
        self._log = open(self.own / "server.log", "wb")  # noqa: SIM115  __exit__ closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.app, *words],
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _address(self) -> str:
        said = self._said()
        assert self._process.poll() is None, said
        found = re.search(r"(http://(?:localhost|127\.0\.0\.1):[1-9]\d*)/(?:lab|tree)", said)
        return found[1] if found else ""

    def __exit__(self, *_: Any) -> None:
        self._process.send_signal(signal.SIGTERM)  # it shuts its kernels down
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


@dataclass(frozen=True)
class Seen:
    "What the eye saw of an output, over `frames` of the screen from its first content on."

    frames: int
    blank: int  # frames without any of it
    heights: tuple[int, ...]  # in pixels, one after the other, each other than the one before
    texts: int  # different contents, one after the other


class Page:
    "A page of JupyterLab with one notebook open."

    def __init__(self, browser: Any, server: Server, dark: bool = False):
        self.context = browser.new_context(
            viewport={"width": 1280, "height": 1000}, color_scheme="dark" if dark else "light"
        )
        self.context.set_default_timeout(1000 * PATIENCE_S)
        self.page, self.server, self.dark = self.context.new_page(), server, dark
        self.received: list[tuple[float, int]] = []  # when, and bytes of the kernel's messages
        self.problems: list[str] = []  # exceptions in the page
        self.page.on("websocket", lambda socket: socket.on("framereceived", self._count))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: Any) -> None:
        self.context.close()

    def _count(self, payload: str | bytes) -> None:
        self.received.append((time.monotonic(), len(payload if isinstance(payload, bytes) else payload.encode())))

    def open(self, name: str) -> None:
        "Open a notebook of the server's folder in a fresh page, and wait for its kernel."
        place = "lab/tree" if self.server.app == "jupyterlab" else "notebooks"
        self.page.goto(f"{self.server.url}/{place}/{name}?reset")
        self._ready()

    def reload(self) -> None:
        "The browser's reload."
        self.page.reload()
        self._ready()

    def _ready(self) -> None:
        self.page.wait_for_function(
            f"() => window.jupyterapp && {NOTEBOOK}?.sessionContext?.session?.kernel && "
            f"{NOTEBOOK}.content.widgets.length"
        )
        self.page.evaluate(f"() => Promise.all([{NOTEBOOK}.context.ready, window.jupyterapp.restored])")
        self.dress(self.dark)  # the server keeps the last page's theme
        if self.page.locator("#jp-left-stack").is_visible():
            self.command("application:toggle-left-area")

    def dress(self, dark: bool) -> None:
        "Change the theme."
        self.dark, theme = dark, f"JupyterLab {'Dark' if dark else 'Light'}"
        self.page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
        self.until(f"document.body.dataset.jpThemeName === '{theme}'", "the theme's style sheet")

    def resize(self, width: int) -> None:
        "Give the window another width, and wait until everything has found its place."
        self.page.set_viewport_size({"width": width, "height": 1000})
        self.settled()

    def command(self, name: str, wait: bool = True) -> None:
        "One of JupyterLab's commands; `wait` for it to be done. `until_idle` waits for those that were not waited for."
        self.page.evaluate(
            f"() => {{ const done = window.jupyterapp.commands.execute('{name}'); "
            "window.underWay = (window.underWay ?? 0) + 1; const end = () => { window.underWay -= 1 }; "
            f"done.then(end, end); {'return done.then(() => null)' if wait else ''} }}"
        )

    # the kernel

    def run_all(self) -> None:
        "Begin to run every cell, as the menu does."
        self.command("notebook:run-all-cells", wait=False)

    def run(self, cell: int) -> None:
        "Begin to run one cell."
        self.page.evaluate(f"() => {{ {NOTEBOOK}.content.activeCellIndex = {cell}; }}")
        self.command("notebook:run-cell", wait=False)

    def press_stop(self) -> None:
        "Click ■ in the notebook's toolbar."
        self.page.locator('.jp-NotebookPanel-toolbar [data-jp-item-name="interrupt"]').locator(
            "visible=true"
        ).first.click()

    def until_idle(self, timeout_s: float = PATIENCE_S) -> None:
        "Wait until every cell that was sent has its reply, and all outputs are drawn."
        self.until(
            f"!window.underWay && {NOTEBOOK}.sessionContext.session.kernel.status === 'idle' && "
            "![...document.querySelectorAll('.jp-InputPrompt')].some(p => p.textContent.includes('*'))",
            "the kernel to be idle",
            timeout_s,
        )
        self.settled()

    def settled(self) -> None:
        "Wait until fonts are there and nothing in the notebook has changed for ten frames of the screen."
        self.page.evaluate(SETTLED)

    def until(self, condition: str, what: str, timeout_s: float = PATIENCE_S) -> Any:
        "Wait until a JavaScript expression is true; its value."
        try:
            return self.page.wait_for_function(f"() => {condition}", timeout=timeout_s * 1000).json_value()
        except Exception as error:
            raise AssertionError(
                f"waited {timeout_s} s in vain for {what}; the page shows: "
                f"{self.page.inner_text('.jp-Notebook')[-3000:]}"
            ) from error

    # the notebook

    def model(self) -> dict:
        "The notebook as it would be saved."
        return self.page.evaluate(f"() => {NOTEBOOK}.context.model.toJSON()")

    def save(self, name: str) -> dict:
        "Save; the notebook `name` as it is on disk."
        self.command("docmanager:save")
        return json.loads((self.server.folder / name).read_text(encoding="utf-8"))

    def trusted(self) -> bool:
        "Whether JupyterLab shows all of it."
        return self.page.evaluate(
            f"() => [...{NOTEBOOK}.content.model.cells].filter(cell => cell.type === 'code').every(cell => "
            "cell.trusted)"
        )

    def output(self, cell: int) -> Any:
        "What a cell shows, to be looked at with Playwright's words."
        return self.page.locator(".jp-Notebook:visible .jp-Cell").nth(cell).locator(".jp-OutputArea")

    def said(self, cell: int) -> str:
        "The text of what a cell shows."
        return "\n".join(self.output(cell).locator(".jp-OutputArea-output").all_inner_texts()).strip()

    def says(self, cell: int, part: str) -> None:
        "Wait until a cell shows this text: what the kernel has sent is drawn some frames later."
        try:
            helpers.wait_for(lambda: part in self.said(cell), f"{part!r} in cell {cell}", 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows: {self.said(cell)[-3000:]}") from None

    # the eye

    def watch(self, cell: int) -> None:
        "From now on look at a cell's output in every frame of the screen: `seen` tells."
        self.page.evaluate(SAMPLER, cell)

    def seen(self) -> Seen:
        "What there was to see since `watch`: one frame at least."
        self.until("window.sampling.frames", "a frame of the screen")
        found = self.page.evaluate("() => { window.sampling.on = false; return window.sampling }")
        return Seen(found["frames"], found["blank"], tuple(found["heights"]), found["texts"])

    def look(self, cell: int) -> dict:
        "Everything that can be seen of a cell's output, once it has settled: what LOOK tells."
        self.settled()
        return self.page.evaluate(LOOK, self.output(cell).element_handle())

    def picture(self, name: str, cell: int | None = None) -> Path:
        "A screenshot of the page, or of a cell, among those that a run of the tests leaves behind."
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}-{'dark' if self.dark else 'light'}.png"
        if cell is None:
            self.page.screenshot(path=path)
        else:
            shown, size = self.page.locator(".jp-Notebook:visible .jp-Cell").nth(cell), self.page.viewport_size
            self.page.set_viewport_size(
                {**size, "height": int(max(size["height"], shown.bounding_box()["height"] + 200))}
            )  # as high as the cell
            shown.screenshot(path=path)
            self.page.set_viewport_size(size)
        print(f"a screenshot: {path}")
        return path


# Place, size and content of all cells, frame by frame, until ten frames are alike.
SETTLED = """async () => {
  await document.fonts.ready
  const look = () => JSON.stringify([...document.querySelectorAll('.jp-Notebook .jp-Cell')].map(cell => {
    const box = cell.getBoundingClientRect()
    return [box.left, box.top, box.width, box.height, cell.innerHTML.length]
  }))
  let last = '', alike = 0
  for (let frame = 0; alike < 10; frame++) {
    if (frame > 3000) throw new Error('the notebook does not come to rest')
    await new Promise(requestAnimationFrame)
    const now = look()
    alike = now === last ? alike + 1 : 0
    last = now
  }
}"""


# One look a frame: the output's height, and whether anything in it is there to be seen. It begins with the first
# content.
SAMPLER = """cell => {
  const s = window.sampling = {on: true, frames: 0, blank: 0, heights: [], texts: 0}
  let last = ''
  const look = () => {
    if (!s.on) return
    const area = document.querySelectorAll('.jp-Notebook .jp-Cell')[cell]?.querySelector('.jp-OutputArea')
    const parts = area ? [...area.querySelectorAll('svg, img, table, pre, div[role]')] : []
    const shown = parts.some(e => e.getBoundingClientRect().height > 4)
    if (shown || s.frames) {
      s.frames += 1
      if (!shown) s.blank += 1
      const height = area ? Math.round(area.getBoundingClientRect().height) : 0
      if (s.heights[s.heights.length - 1] !== height) s.heights.push(height)
      if (area && area.innerHTML !== last) { s.texts += 1; last = area.innerHTML }
    }
    requestAnimationFrame(look)
  }
  requestAnimationFrame(look)
}"""


# Everything that can be seen of an element: its texts with place, size and contrast, what is clipped, where panels are.
LOOK = """(root) => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true})
  const painted = colors => {
    canvas.clearRect(0, 0, 1, 1)
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1) }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
  }
  const light = rgb => rgb.map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
  const paper = e => !e ? 'white' : /^rgba\\(.*, 0\\)$|^transparent$/.test(getComputedStyle(e).backgroundColor)
    ? paper(e.parentElement) : getComputedStyle(e).backgroundColor
  const page = paper(root)
  const contrast = (color, under) => {
    const [a, b] = [light(painted([page, ...under, color])), light(painted([page, ...under]))]
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
  }
  const hatched = element => {  // the darkest that lies under it: a stripe of a tile
    const tile = element.closest('.t')
    const color = tile && getComputedStyle(tile).backgroundImage.match(/rgba?\\([^)]*\\)/)
    return color ? [color[0]] : []
  }
  const scrolled = element => element.closest('[style*="overflow:auto"], [style*="overflow: auto"]')
  const known = new Map([[document.body, true]])
  const seen = e => {  // checkVisibility takes what lies in a hidden group of SVG for visible
    if (!known.has(e)) {
      const style = getComputedStyle(e)
      known.set(e, style.display !== 'none' && style.visibility !== 'hidden' && seen(e.parentElement))
    }
    return known.get(e)
  }
  const texts = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement
    if (!node.textContent.trim() || ['STYLE', 'TITLE', 'SCRIPT', 'title'].includes(parent.tagName)) continue
    if (parent.getBoundingClientRect().width === 1) continue  // for screen readers alone
    if (!seen(parent) || (parent.closest('details:not([open])') && !parent.closest('summary'))) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    const style = getComputedStyle(parent), svg = parent.namespaceURI.endsWith('svg')
    const scroll = scrolled(parent), port = scroll && scroll.getBoundingClientRect()
    for (const box of range.getClientRects()) {
      if (port && (box.bottom > port.bottom || box.top < port.top || box.right > port.right)) continue
      const cutAt = parent.closest('[style*="ellipsis"]')?.getBoundingClientRect().right ?? Infinity
      texts.push({text: node.textContent.trim().slice(0, 40), left: box.left, right: Math.min(box.right, cutAt),
        top: box.top, bottom: box.bottom, size: parseFloat(style.fontSize), owner: node,
        contrast: contrast(svg ? style.fill : style.color, hatched(parent))})
    }
  }
  const overlaps = []
  texts.sort((a, b) => a.top - b.top)
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const [a, b] = [texts[i], texts[j]]
    if (b.top > a.bottom) break
    if (a.owner === b.owner) continue
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) overlaps.push([a.text, b.text])
  }
  const cut = e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 2
  const clipped = [...root.querySelectorAll('div, span, b')]
    .filter(e => seen(e) && !e.title && e.clientWidth !== 1 && getComputedStyle(e).overflowX === 'hidden' && cut(e))
    .map(e => e.textContent.slice(0, 60))
  const whole = root.getBoundingClientRect()
  const drawn = [...root.querySelectorAll('g[stroke], g[fill]')].filter(e => seen(e) && e.children.length)
    .map(e => { const s = getComputedStyle(e); return s.stroke !== 'none' && e.getAttribute('stroke-opacity') !== '.15'
      ? contrast(s.stroke, []) : e.hasAttribute('fill') ? contrast(s.fill, []) : 99 })
  const panels = [...root.querySelectorAll('.p')].map(e => e.getBoundingClientRect())
  return {height: whole.height, left: whole.left, right: whole.right, overlaps, clipped,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    small: texts.filter(t => t.size < 11).map(t => t.text), drawn: Math.min(99, ...drawn),
    faint: texts.filter(t => t.contrast < 4.5).map(t => [t.text, t.contrast]),
    out: texts.filter(t => t.right > whole.right + 1 || t.left < whole.left - 1).map(t => t.text),
    columns: panels.filter(p => Math.abs(p.top - panels[0].top) < 4).length,
    reach: Math.max(0, ...panels.map(p => p.right)), texts: texts.length}
}"""
