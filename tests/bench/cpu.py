"""CPU seconds: of this process's threads, of another process, of the whole machine."""

from __future__ import annotations

import os
import threading
import time

_TICK = os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU seconds of a process, also of one that has ended and was not reaped."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()  # the name, in parentheses, may hold anything
    return (int(fields[11]) + int(fields[12])) / _TICK


def thread_seconds() -> float:
    """CPU seconds of all threads of this process but the main one."""
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    return sum(_clock(thread.ident) for thread in others if thread.ident)


def _clock(ident: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


def machine_seconds() -> float:
    """CPU seconds of everything on this machine, idle time left out. Says whether a figure was taken in peace."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _waiting, *interrupts = map(int, file.readline().split()[1:9])
    return (user + nice + system + sum(interrupts)) / _TICK
