#!/usr/bin/env python3
"""Runs a command on a terminal of its own and presses keys.

usage: terminal.py ROWS COLUMNS STEPS COMMAND...

STEPS is JSON: a list of [WORD, ACTION]. Each step waits until WORD has been written since the last step, and then acts.
An ACTION is keys to press, or 'SIGNAL n' to send signal n. At the end, prints JSON: the exit code, what was written,
and whether the terminal is as before."""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

PATIENCE_S = 60


def main():
    rows, columns, steps, command = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    before = termios.tcgetattr(inner)
    pid = os.fork()
    if pid == 0:
        os.close(outer)
        os.login_tty(inner) if hasattr(os, "login_tty") else take(inner)
        os.execvp(command[0], command)
    written, at, status = b"", 0, None
    deadline = time.monotonic() + PATIENCE_S
    while status is None and time.monotonic() < deadline:
        if select.select([outer], [], [], 0.05)[0]:
            written += os.read(outer, 65536)
        if steps and written.find(steps[0][0].encode(), at) >= 0:
            act(pid, outer, steps.pop(0)[1])
            at = len(written)
        ended, code = os.waitpid(pid, os.WNOHANG)
        status = code if ended else None
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while select.select([outer], [], [], 0)[0]:
        written += os.read(outer, 65536)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    is_restored = termios.tcgetattr(inner) == before
    print(json.dumps({"code": code, "written": written.decode(errors="replace"), "restored": is_restored,
                      "left": len(steps)}))


def take(inner):
    os.setsid()
    fcntl.ioctl(inner, termios.TIOCSCTTY, 0)
    for fd in range(3):
        os.dup2(inner, fd)


def act(pid, outer, action):
    word, _, number = action.partition(" ")
    if word == "SIGNAL":
        os.kill(pid, int(number))
    else:
        os.write(outer, action.encode())


main()
