"""A system-call filter (classic BPF): a second wall in every sandbox, the only one for the network without namespaces.

The program is made here and loaded by the worker's bootstrap. Numbers: the kernel's
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from pathlib import Path

LD_WORD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENT = 0, 4, 16
AF_UNIX = 1
NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEW* of clone(2): time, net, pid, user, ipc, uts, cgroup, mount."""
X32_BIT = 0x40000000

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64), None where the architecture has no such call
_DENIED: dict[str, tuple[int | None, int]] = {
    "ptrace": (101, 117), "syslog": (103, 116), "pivot_root": (155, 41), "adjtimex": (159, 171), "chroot": (161, 51),
    "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162),
    "init_module": (175, 105), "delete_module": (176, 106), "quotactl": (179, 60), "clock_settime": (227, 112),
    "kexec_load": (246, 104), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "migrate_pages": (256, 238), "unshare": (272, 97), "perf_event_open": (298, 241),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443), "iopl": (172, -1), "ioperm": (173, -1),
}  # fmt: skip
_SOCKET, _CONNECT, _CLONE, _CLONE3, _PRLIMIT = (41, 198), (42, 203), (56, 220), (435, 435), (302, 261)


def supported() -> bool:
    """Whether this kernel filters system calls and this architecture's numbers are known."""
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return False
    return platform.machine() in _ARCH and {"errno", "kill_process"} <= set(actions)


def _instruction(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, true, false, value)


@functools.cache
def program(*, connect: bool) -> bytes:
    """The filter, as an array of `struct sock_filter`.

    Denied with EPERM: sockets other than AF_UNIX (which CUDA opens when it starts), tracing, mounts, namespaces, keys,
    BPF, io_uring (it opens sockets unseen by a filter), another process's resource limits. clone3 answers ENOSYS: its
    flags lie behind a pointer, and glibc then uses clone, whose flags can be looked at; threads work as before.

    Args:
        connect: allow connect(2). Without a mount namespace a container engine's socket would be within reach.
    """
    column = list(_ARCH).index(platform.machine())

    def deny(code: int) -> bytes:
        return _instruction(RETURN, ERRNO | code)

    def on(number: int | None, body: bytes) -> bytes:
        if number is None or number < 0:
            return b""
        return _instruction(JUMP_EQUAL, number, 0, len(body) // 8) + body

    load_number = _instruction(LD_WORD, OFFSET_NUMBER)
    load_argument = _instruction(LD_WORD, OFFSET_ARGUMENT)
    allow = _instruction(RETURN, ALLOW)
    parts = [
        _instruction(LD_WORD, OFFSET_ARCH),
        _instruction(JUMP_EQUAL, _ARCH[platform.machine()], 1, 0),
        _instruction(RETURN, KILL_PROCESS),
        load_number,
    ]
    if platform.machine() == "x86_64":
        parts += [_instruction(JUMP_GREATER_EQUAL, X32_BIT, 0, 1), deny(errno.ENOSYS)]
    parts += [on(numbers[column], deny(errno.EPERM)) for numbers in _DENIED.values()]
    parts += [
        on(_CLONE3[column], deny(errno.ENOSYS)),
        on(_SOCKET[column], load_argument + _instruction(JUMP_EQUAL, AF_UNIX, 1, 0) + deny(errno.EPERM) + allow),
        b"" if connect else on(_CONNECT[column], deny(errno.EPERM)),
        on(_CLONE[column], load_argument + _instruction(JUMP_SET, NAMESPACE_FLAGS, 0, 1) + deny(errno.EPERM) + allow),
        on(_PRLIMIT[column], load_argument + _instruction(JUMP_EQUAL, 0, 1, 0) + deny(errno.EPERM) + allow),
        allow,
    ]
    return b"".join(parts)
