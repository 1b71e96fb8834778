"""`make lab`, as a reader uses it: open a chapter by double click, run it, edit it, save it."""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from test_pages import ROOT

CHAPTER = "lower_bound"  # seconds
COPIED = ["Makefile", "pyproject.toml", "requirements.lock", f"notebooks/{CHAPTER}.md"]
LINKED = [".venv", "lipcore", "book"]
TOKEN = "letmein"
WORDS = " This sentence is new."

# Whether the chapter is open as a notebook, and its kernel waits: earlier, nothing can be run.
IDLE = f"""() => {{
  const panel = jupyterapp.shell.currentWidget, kernel = panel?.sessionContext?.session?.kernel;
  return panel?.context?.path.includes('{CHAPTER}') && kernel?.status === 'idle';
}}"""

# What the notebook shows: execution counts, and the outputs that are errors.
STATE = """() => {
  const cells = [...jupyterapp.shell.currentWidget.content.model.cells]
    .map(cell => cell.toJSON()).filter(cell => cell.cell_type === 'code');
  const outputs = cells.flatMap(cell => cell.outputs), counts = cells.map(cell => cell.execution_count);
  const errors = outputs.filter(output => output.output_type === 'error');
  return {errors, outputs: outputs.length, ended: errors.length || !counts.includes(null)};
}"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy whose chapter may be changed; git knows it as it was."""
    folder = tmp_path / "copy"
    (folder / "notebooks").mkdir(parents=True)
    for name in COPIED:
        shutil.copy2(ROOT / name, folder / name)
    for name in LINKED:
        (folder / name).symlink_to((ROOT / name).resolve())
    git(folder, "init", "--quiet")
    git(folder, "add", "notebooks")
    return folder


@pytest.fixture
def lab(checkout, tmp_path):
    """The server that `make lab` starts, with nobody's own settings; its address, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = f"--no-browser --allow-root --expose-app-in-browser --port={port} --ServerApp.port_retries=0"
    command = ["make", "-o", ".venv/.installed", "-o", "_build/.weights", "lab"]
    own = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    log = tmp_path / "lab.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, f"LAB_FLAGS={flags} --IdentityProvider.token={TOKEN}"],
            cwd=checkout,
            env={**os.environ, **own, "IPYTHONDIR": str(tmp_path / "ipython")},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api/status?token={TOKEN}", server, log)
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks?token={TOKEN}", server.pid
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=20)


def wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"make lab does not answer:\n{log.read_text()}")


def is_saved(answer) -> bool:
    """Whether an answer is that to saving the chapter; JupyterLab saves its own layout, too."""
    path = answer.url.partition("?")[0]
    return answer.request.method == "PUT" and path.endswith(f"/{CHAPTER}.md")


def test_a_reader_runs_a_chapter_edits_it_and_saves_that_edit_alone(browser, lab, checkout):
    address, pid = lab
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.locator(".jp-DirListing-item", has_text=CHAPTER).dblclick()
    page.wait_for_function(IDLE)

    page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) h1").click()
    page.keyboard.press("Enter")
    page.locator(".jp-MarkdownCell .cm-focused").wait_for()
    page.keyboard.press("Control+End")
    page.keyboard.type(WORDS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(f"({STATE})().ended")
    state = page.evaluate(STATE)
    assert state["outputs"] and state["errors"] == []
    commands = [child.cmdline() for child in psutil.Process(pid).children(recursive=True)]
    (kernel,) = [command[0] for command in commands if "ipykernel_launcher" in command]
    assert Path(kernel).parent.resolve() == (ROOT / ".venv" / "bin").resolve()

    with page.expect_response(is_saved):
        page.keyboard.press("Control+s")
    page.context.close()
    changes = git(checkout, "diff", "--unified=0").splitlines()
    old, new = (x[1:] for x in changes if x[0] in "+-" and x[:3] not in ("+++", "---"))
    assert new == old + WORDS
