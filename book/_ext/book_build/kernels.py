"""Start the kernels that execute pages, from nothing or as copies of a process with the libraries.

Most pages import PyTorch, transformers, pandas and Matplotlib, which takes longer than many of them
compute. Where the system can copy a process (Linux), a server imports them once, and each kernel is
a copy of it.
"""

import os
import sys
import tempfile
import uuid
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

from ipykernel.kernelapp import IPKernelApp
from jupyter_client.localinterfaces import localhost
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from traitlets import default

INLINE = "module://matplotlib_inline.backend_inline"


class KernelManager(AsyncKernelManager):
    """Talks to kernels over local sockets, if any: two started at once may pick one port."""

    @default("transport")
    def _transport_default(self) -> str:
        return "ipc" if os.name == "posix" else "tcp"

    @default("ip")
    def _ip_default(self) -> str:
        own = Path(tempfile.gettempdir()) / f"book-kernel-{uuid.uuid4().hex[:12]}"
        return str(own) if self.transport == "ipc" else localhost()


class CopyingKernelManager(KernelManager):
    """Starts each kernel as a copy of the server that has imported the libraries."""

    async def _async_pre_start_kernel(self, **options):
        self.provisioner = Copies(kernel_id="", kernel_spec=self.kernel_spec, parent=self)
        return await super()._async_pre_start_kernel(**options)


class Copies(LocalProvisioner):
    """Launches a kernel through the server in place of a new interpreter."""

    async def launch_kernel(self, cmd: list[str], **options):
        """Return how to reach the kernel, once it has been launched."""
        arguments = cmd[cmd.index("ipykernel_launcher") + 1 :]
        self.process = Copy(target=serve, args=(arguments, options["env"], options["cwd"]))
        self.process.start()
        self.pid, self.cwd = self.process.pid, options["cwd"]
        return self.connection_info


class Copy(ForkServerProcess):
    """A copy of the server, with the methods of ``subprocess.Popen`` that a provisioner calls."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def serve(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Run as a kernel, until told to stop or the server has gone."""
    os.setsid()  # Ctrl-C in the terminal is for the build alone
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    IPKernelApp.launch_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def manager_class(libraries: list[str]) -> type[KernelManager]:
    """Return the class that starts kernels; its server imports these libraries, if any."""
    if not libraries or not sys.platform.startswith("linux"):
        return KernelManager
    # "__main__" keeps each copy from running the script of the build once more.
    forkserver.set_forkserver_preload(["__main__", __name__, *libraries])
    surroundings = {
        # Matplotlib chooses where to draw when it is imported; a kernel draws on the page.
        "MPLBACKEND": INLINE,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # progress bars of transformers
    }
    with mock.patch.dict(os.environ, surroundings):
        forkserver.ensure_running()
    return CopyingKernelManager
