"""Kernels that are copies of one process: they share its imports and nothing else."""

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
LOADED = f"import os, sys; print({LIBRARY!r} in sys.modules, os.getcwd(), os.getenv('BOOK_TEST'))"


def outputs(folder, *cells, manager=None, **options):
    """Execute cells in a kernel of their own; list their outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    manager = manager or manager_class([LIBRARY, "matplotlib.pyplot"])
    options["resources"] = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, kernel_name="python3", kernel_manager_class=manager, **options
    ).execute()
    return [output for cell in notebook.cells for output in cell.outputs]


def test_without_libraries_a_kernel_starts_from_nothing(tmp_path):
    assert manager_class([]) is KernelManager
    assert outputs(tmp_path, LOADED, manager=KernelManager)[0].text.startswith("False")


@needs_copies
def test_copies_have_the_libraries_and_share_nothing_that_a_page_does(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_TEST", "seen")
    drawn = "import sys; sys.left_behind = 1\nimport matplotlib.pyplot as plt; plt.plot([1, 2]);"
    assert [output.output_type for output in outputs(tmp_path, drawn)] == ["display_data"]
    first, second = outputs(tmp_path, LOADED, "print(hasattr(sys, 'left_behind'))")
    assert (first.text, second.text) == (f"True {tmp_path} seen\n", "False\n")


@needs_copies
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_copy_that_hangs_or_dies_is_noticed_and_ended(tmp_path):
    noted = "import os, time; open('pid', 'w').write(str(os.getpid()))"
    with pytest.raises(CellTimeoutError):
        outputs(tmp_path, noted, "time.sleep(60)", timeout=1)
    pid, end = int((tmp_path / "pid").read_text()), time.monotonic() + 5
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(pid, 0)
            time.sleep(0.1)
    with pytest.raises(DeadKernelError):
        outputs(tmp_path, "import os; os._exit(3)")
