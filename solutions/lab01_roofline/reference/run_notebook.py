"""Runs a notebook from a clean kernel in a fresh copy of this folder, as the grader does. Provided.

``python run_notebook.py`` says whether your notebook runs from top to bottom without what an earlier run left behind.
Cells run in a Jupyter kernel (nbclient) that talks over local sockets of the file system, never the network. Where even
these are forbidden, as in some sandboxes, they run in a fresh IPython shell without a kernel. With ``--keep`` the table
and the plot of that run replace those in this folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NOTEBOOK = "roofline.ipynb"
PRODUCTS = ("table.csv", "roofline.png")
MAX_PRODUCT_BYTES = 8 << 20
MAX_ERROR_TEXT = 600
KERNEL_START_S = 30
SHELL_RESULT = "shell_result.json"


def execute(cell_timeout_s: float = 60.0) -> dict[str, Any]:
    """Run the notebook in a fresh copy of this folder, from which the notebook's products were removed.

    Returns:
        ``how``: ``kernel`` or ``shell``; ``error``: the first failing cell and what it raised, empty when all cells
        ran; ``cells``: number of code cells; ``files``: name → bytes of each product, None where it's missing.
    """
    with tempfile.TemporaryDirectory(prefix="notebook-") as scratch:
        folder = Path(scratch) / "lab"
        left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", *PRODUCTS)
        shutil.copytree(HERE, folder, ignore=left_out)
        sources = _code_cells(folder / NOTEBOOK)
        # A plot that asks for a window would find no screen.
        os.environ.setdefault("MPLBACKEND", "Agg")
        if _sockets_work(Path(scratch)):
            how, error = "kernel", _run_in_kernel(folder, Path(scratch), cell_timeout_s)
        else:
            how, error = "shell", _run_in_shell(folder, cell_timeout_s * max(1, len(sources)))
        files = {name: _product(folder / name) for name in PRODUCTS}
    return {"how": how, "error": error[:MAX_ERROR_TEXT], "cells": len(sources), "files": files}


def _code_cells(path: Path) -> list[str]:
    """Sources of the code cells.

    Raises:
        ValueError: the file is missing or isn't a notebook.
    """
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} isn't a Jupyter notebook of format 4 ({type(error).__name__})") from error
    return [source if isinstance(source, str) else "".join(source) for source in sources]


def _sockets_work(folder: Path) -> bool:
    """Whether a local socket can be bound and connected to: a kernel and its client talk over such."""
    if not hasattr(socket, "AF_UNIX"):
        return False
    try:
        with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connecting:
            listening.bind(str(folder / "probe"))
            listening.listen(1)
            connecting.connect(str(folder / "probe"))
    except OSError:
        return False
    return True


def _run_in_kernel(folder: Path, scratch: Path, cell_timeout_s: float) -> str:
    """The first error, empty when every cell ran. The kernel's files lie in `scratch`, out of the notebook's sight."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    spec = scratch / "share" / "kernels" / "clean"
    spec.mkdir(parents=True)
    argv = [sys.executable, str(Path(__file__).resolve()), "--kernel", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "clean", "language": "python"}))
    os.environ["JUPYTER_PATH"] = str(scratch / "share")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(scratch / "runtime")
    notebook = nbformat.read(folder / NOTEBOOK, as_version=4)
    manager = AsyncKernelManager(kernel_name="clean", transport="ipc", ip=str(scratch / "k"))
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=int(cell_timeout_s),
        startup_timeout=KERNEL_START_S,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(cleanup_kc=True)
    except CellExecutionError as error:
        return f"{_place(notebook)}{_line(folder, error.traceback)}{error.ename}: {error.evalue}"
    except CellTimeoutError:
        return f"{_place(notebook)}no end after {cell_timeout_s:g} s"
    except (DeadKernelError, RuntimeError) as error:
        return f"{_place(notebook)}the kernel ended: {error}"
    return ""


def _place(notebook: Any) -> str:
    """``code cell 3: `` for the last cell that began."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    started = sum("execution" in cell.metadata for cell in code)
    return f"code cell {started}: " if started else ""


def _line(folder: Path, told: str) -> str:
    """``roofline.py:45: `` for the innermost line of the folder's own files that a traceback names."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told)
    found = re.findall(rf"{re.escape(str(folder))}/([\w./-]+\.py)(?::|\", line )(\d+)", plain)
    return f"{found[-1][0]}:{found[-1][1]}: " if found else ""


def _serve_kernel() -> None:
    """A kernel without the TCP port by which ipykernel collects what forked processes print."""
    from ipykernel import kernelapp
    from ipykernel.iostream import IOPubThread

    class QuietIOPubThread(IOPubThread):
        def __init__(self, socket: Any, pipe: bool = False, **options: Any) -> None:
            super().__init__(socket, pipe=False, **options)

    kernelapp.IOPubThread = QuietIOPubThread
    # This file's folder came first on the path by being run; the notebook imports from its own folder.
    sys.path[0] = os.getcwd()
    kernelapp.launch_new_instance()


def _run_in_shell(folder: Path, timeout_s: float) -> str:
    command = [sys.executable, str(Path(__file__).resolve()), "--shell"]
    try:
        done = subprocess.run(command, cwd=folder, timeout=timeout_s, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {timeout_s:g} s"
    result = folder / SHELL_RESULT
    if not result.is_file():
        return f"the shell ended with code {done.returncode} in the middle of the notebook"
    return str(json.loads(result.read_text(encoding="utf-8"))["error"])


def _serve_shell() -> None:
    """Run the cells of the notebook in this working folder; write the first error to a file."""
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        def enable_gui(self, gui: str | None = None) -> None:
            """`%matplotlib inline` asks for an event loop; there is none to start."""

    sys.path[0] = os.getcwd()
    shell = Shell.instance()
    shell.history_manager.enabled = False
    error = ""
    for number, source in enumerate(_code_cells(Path(NOTEBOOK)), start=1):
        result = shell.run_cell(source)
        raised = result.error_before_exec or result.error_in_exec
        if raised is not None:
            place = _line(Path.cwd(), "".join(traceback.format_exception(raised)))
            error = f"code cell {number}: {place}{type(raised).__name__}: {raised}"
            break
    Path(SHELL_RESULT).write_text(json.dumps({"error": error}), encoding="utf-8")


def _product(path: Path) -> bytes | None:
    """Content of a file that the notebook left; None if there is none, or more than a table or a plot takes."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_PRODUCT_BYTES:
        return None
    return path.read_bytes()


def main() -> None:
    result = execute()
    if result["error"]:
        sys.exit(f"{NOTEBOOK} stops: {result['error']}")
    missing = [name for name, content in result["files"].items() if content is None]
    if missing:
        sys.exit(f"{NOTEBOOK} runs, but doesn't leave {' and '.join(missing)} in its folder.")
    if "--keep" in sys.argv:
        for name, content in result["files"].items():
            (HERE / name).write_bytes(content)
    print(f"{NOTEBOOK}: {result['cells']} code cells ran ({result['how']}); it leaves {' and '.join(PRODUCTS)}.")


if __name__ == "__main__":
    if "--kernel" in sys.argv:
        sys.argv.remove("--kernel")
        _serve_kernel()
    elif "--shell" in sys.argv:
        _serve_shell()
    else:
        main()
