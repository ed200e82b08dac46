"""Stops one thread of a running server, by its name, as a device that hangs would: the others go on."""

import contextlib
import ctypes
import os
import pathlib

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


@contextlib.contextmanager
def standing_still(process, name):
    thread = thread_named(process, name)
    try:
        ptrace(SEIZE, thread)
    except PermissionError:
        pytest.skip("this machine lets no process stop a thread of its child")
    ptrace(INTERRUPT, thread)
    os.waitpid(thread, WAIT_ALL)
    try:
        yield
    finally:
        ptrace(DETACH, thread)
