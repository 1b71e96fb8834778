"""Kernels that are copies of one process: they share its imports and nothing else."""

from __future__ import annotations

import os
import sys
import time

import nbformat
import pytest
from book_build.kernels import KernelManager, manager_class
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

needs_copies = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
LIBRARY = "xml.sax.xmlreader"  # of the standard library, and loaded by nothing else here


def run(folder, *cells, manager=None, **options):
    """Execute cells in a kernel of their own; return what they print."""
    return "".join(output.text for output in outputs(folder, *cells, manager=manager, **options))


def outputs(folder, *cells, manager=None, **options):
    """Execute cells in a kernel of their own; list their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    manager = manager or manager_class([LIBRARY, "matplotlib.pyplot"])
    resources = {"metadata": {"path": str(folder)}}
    options = {"kernel_name": "python3", "resources": resources, **options}
    NotebookClient(notebook, kernel_manager_class=manager, **options).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def test_without_libraries_a_kernel_starts_from_nothing(tmp_path):
    assert manager_class([]) is KernelManager
    asked = f"import sys; print({LIBRARY!r} in sys.modules)"
    assert run(tmp_path, asked, manager=KernelManager) == "False\n"


@needs_copies
def test_copies_have_the_libraries_their_own_folder_and_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_TEST", "seen")
    asked = (
        f"import os, sys; print({LIBRARY!r} in sys.modules, os.getcwd(), os.environ['BOOK_TEST'])"
    )
    assert run(tmp_path, asked) == f"True {tmp_path} seen\n"


@needs_copies
def test_copies_share_nothing_that_a_page_does(tmp_path):
    run(tmp_path, "import sys; sys.left_behind = True; value = 1")
    assert run(tmp_path, "import sys; print(hasattr(sys, 'left_behind'))") == "False\n"
    assert run(tmp_path, "print('value' in globals())") == "False\n"


@needs_copies
def test_figures_are_drawn_on_the_page(tmp_path):
    drawn = "import matplotlib.pyplot as plt; plt.plot([1, 2]);"
    assert [output.output_type for output in outputs(tmp_path, drawn)] == ["display_data"]


@needs_copies
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_copy_that_hangs_or_dies_is_noticed_and_ended(tmp_path):
    pid = tmp_path / "pid"
    noted = "import os, time; open('pid', 'w').write(str(os.getpid()))"
    with pytest.raises(CellTimeoutError):
        run(tmp_path, noted, "time.sleep(60)", timeout=1)
    for _ in range(50):
        if not alive(int(pid.read_text())):
            break
        time.sleep(0.1)
    assert not alive(int(pid.read_text()))
    with pytest.raises(DeadKernelError):
        run(tmp_path, "import os; os._exit(3)")


def alive(pid):
    """Tell whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
