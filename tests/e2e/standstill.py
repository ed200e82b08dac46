"""Stops one thread of a running server, by its name, as a device that hangs would: the others go on."""

import contextlib
import ctypes
import os
import pathlib
import time

import pytest

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WAIT_ALL = 0x40000000  # __WALL: for threads too

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if _libc.ptrace(request, thread, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def thread_named(process, name):
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    found = [int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name]
    assert len(found) == 1, f"{len(found)} threads are called {name}"
    return found[0]


def status_of(process, thread):
    """The status of a process that has ended, or None. Its stopped thread, which goes with it, is ours to wait for: until
    then nobody sees that the process has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(thread, WAIT_ALL | os.WNOHANG)
    return process.poll()


def status_within(process, thread, patience_s):
    deadline = time.monotonic() + patience_s
    while (status := status_of(process, thread)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return status


@contextlib.contextmanager
def standing_still_thread(thread):
    try:
        ptrace(SEIZE, thread)
    except PermissionError:
        pytest.skip("this machine lets no process stop a thread of its child")
    ptrace(INTERRUPT, thread)
    os.waitpid(thread, WAIT_ALL)
    try:
        yield thread
    finally:
        with contextlib.suppress(OSError):  # its process may have ended
            ptrace(DETACH, thread)


def standing_still(process, name):
    return standing_still_thread(thread_named(process, name))
