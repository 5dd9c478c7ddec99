"""Which files a worker's Python needs and which must stay hidden: the allowlist behind mounts and Landlock rules."""

from __future__ import annotations

import functools
import importlib.util
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grader.errors import InfrastructureError

SYSTEM_DIRS = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
ETC_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
LIBRARIES = ("numpy", "torch", "triton", "ml_dtypes")
CPU_TOPOLOGY = ("/sys/devices/system/cpu", "/sys/devices/system/node")
COURSE_DIRS = ("assignments", "solutions", "starter", "tests", ".git")
PACKAGE_DIR = Path(__file__).resolve().parent.parent
MAX_THREADS = 4
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True)
class PythonFiles:
    """The running interpreter, as a worker must see it.

    Attributes:
        executable: `sys.executable`.
        roots: folders outside /usr that hold the environment, the base installation and the libraries.
        hops: links on the way from `executable` to the real binary that lie outside every root.
        import_dirs: folders to append to `sys.path`, which an isolated interpreter wouldn't find by itself.
        probes: a few paths whose modes tell whether another user could run this Python.
    """

    executable: str
    roots: tuple[Path, ...]
    hops: tuple[Path, ...]
    import_dirs: tuple[str, ...]
    probes: tuple[Path, ...]


def is_within(path: Path, roots: Iterable[Path | str]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _without_dots(path: str) -> Path:
    """The same place without ``..``: started as ``../venv/bin/python``, every path of this Python has them.

    Only the folder is resolved, not the last name: what an environment's `python` leads to is another environment.
    """
    found = Path(path)
    return found.parent.resolve() / found.name if ".." in found.parts else found


def _library_dirs() -> list[Path]:
    """Folders that hold the numeric libraries, found without importing them."""
    found = []
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
        if spec is not None and spec.origin:
            folder = _without_dots(spec.origin).parent
            found.append(folder.parent if spec.submodule_search_locations else folder)
    return found


@functools.cache
def python_files() -> PythonFiles:
    """Where this interpreter lies.

    Raises:
        InfrastructureError: its prefix is the file system's root, so nothing could be kept out of a worker's sight.
    """
    if not sys.executable:
        raise InfrastructureError(
            "sys.executable is empty: the path of this Python isn't known, so no worker can be started.",
            hint="Start `grade` from a virtual environment.",
        )
    prefixes = [_without_dots(p) for p in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)]
    libraries = _library_dirs()
    candidates = [path for folder in (*prefixes, *libraries) for path in (folder, folder.resolve())]
    if Path("/") in candidates:
        raise InfrastructureError("This Python's prefix is `/`.", hint="Start `grade` from a virtual environment.")
    roots: list[Path] = []
    for path in sorted(set(candidates), key=lambda item: (len(item.parts), item)):
        if not is_within(path, SYSTEM_DIRS) and not is_within(path, roots):
            roots.append(path)
    hops = []
    hop = executable = _without_dots(sys.executable)
    while not is_within(hop, (*SYSTEM_DIRS, *roots)) or hop.is_symlink():
        if not is_within(hop, (*SYSTEM_DIRS, *roots)):
            hops.append(hop)
        if not hop.is_symlink():
            break
        hop = Path(os.path.normpath(hop.parent / os.readlink(hop)))
    # site adds the environment's own folders; what PYTHONPATH brought is lost under -I.
    known = [str(path) for path in map(_without_dots, sys.path) if is_within(path, prefixes)] if sys.prefix else []
    extra = dict.fromkeys(str(path) for path in libraries if str(path) not in known and not is_within(path, prefixes))
    probes = [*roots, Path(sys.executable).resolve(), Path(os.__file__).resolve(), *libraries]
    return PythonFiles(str(executable), tuple(roots), tuple(hops), tuple(extra), tuple(probes))


def default_protect() -> tuple[Path, ...]:
    """What no worker may read, wherever it lies: this package, and the course beside it in a checkout."""
    beside = PACKAGE_DIR.parent
    course = [beside / name for name in COURSE_DIRS] if (beside / "assignments").is_dir() else []
    return (PACKAGE_DIR, *(path for path in course if path.exists()))


def unreadable_by_others(paths: Iterable[Path], *, ancestors: bool) -> Path | None:
    """The first of `paths` (with `ancestors`: or a folder above it) whose mode keeps other users out, else None.

    Of a folder, read and search permission are asked for; of a file, read permission.
    """
    for path in paths:
        chain = [path, *path.parents] if ancestors else [path]
        for step in reversed(chain):
            try:
                mode = step.stat().st_mode
            except OSError:
                break
            wanted = stat.S_IXOTH if stat.S_ISDIR(mode) else 0
            if step == path:
                wanted |= stat.S_IROTH
            if mode & wanted != wanted:
                return step
    return None


def readable_by_others(paths: Iterable[Path]) -> list[Path]:
    """Those of `paths` that any user of this machine can read: mode bits of the path and of every folder above it."""
    return [path for path in paths if path.exists() and unreadable_by_others([path], ancestors=True) is None]


def cuda_devices() -> list[Path]:
    """Device nodes of the NVIDIA driver (with those of nvidia-caps)."""
    nodes = sorted(Path("/dev").glob("nvidia*"))
    return [*(node for node in nodes if not node.is_dir()), *sorted(Path("/dev").glob("nvidia-caps/*"))]


def cuda_library_dirs() -> list[Path]:
    """Folders of CUDA libraries that the loader is pointed to and that lie outside /usr."""
    named = [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    named += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    named.append(Path("/usr/local/cuda").resolve())
    return [path for path in dict.fromkeys(named) if path.is_dir() and path != Path("/")]


def variables(*, device: str, tmp: str, submission: str | None, extra: dict[str, str]) -> dict[str, str]:
    """The whole environment of a worker; nothing of the judge's passes but the time zone and, for CUDA, device choice.

    Args:
        tmp: the worker's scratch folder; every cache lies in it, so that none outlives the worker.
    """
    threads = str(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    home = f"{tmp}/home"
    result = {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "USER": "worker",
        "LOGNAME": "worker",
        "LANG": "C.UTF-8",
        "TMPDIR": tmp,
        "XDG_CACHE_HOME": f"{home}/.cache",
        "TRITON_CACHE_DIR": f"{tmp}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{tmp}/inductor",
        "CUDA_CACHE_PATH": f"{tmp}/cuda",
        # More threads than cores would only meet the limit on processes; a fixed number makes sums repeatable.
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    if submission is not None:
        result["GRADE_SUBMISSION_DIR"] = submission
    if "TZ" in os.environ:
        result["TZ"] = os.environ["TZ"]
    if device == "cuda":
        result |= {name: os.environ[name] for name in CUDA_VARIABLES if name in os.environ}
        libraries = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p and Path(p).is_dir()]
        if libraries:
            result["LD_LIBRARY_PATH"] = ":".join(libraries)
    return result | extra
