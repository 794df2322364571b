"""Forks programs from a process that has imported torch, for client.py.

``python server.py FOLDER/SOCKET`` prints "ready" and serves until its input ends, when it removes
the folder. Each client has a process that waits for its program: that tells the client the exit
status, passes its signals on, and ends the program where the client has gone. The program runs on
top of this file, and not within a function of multiprocessing, so that it goes the whole way of an
interpreter that ends.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import sys
import types
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.run
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]

PATIENCE_S = 10.0  # in which torchrun ends its ranks
MOST_BYTES = 1 << 18


def serve(address: str) -> tuple[dict[str, Any], list[int]]:
    """Returns in a new process for each program: what is asked for, and its files 0, 1 and 2."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    gc.freeze()  # or each program's end takes 1 s to look through torch's objects, and copies them
    print("ready", flush=True)
    while listener in select.select([listener, 0], [], [])[0]:
        client = listener.accept()[0]
        if os.fork() == 0:
            _prctl_pr_set_pdeathsig(signal.SIGKILL)
            listener.close()
            data, files, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
            if (pid := os.fork()) == 0:
                _prctl_pr_set_pdeathsig(signal.SIGKILL)
                client.close()
                return json.loads(data), files
            for file in files:
                os.close(file)
            watch(pid, client)
            os._exit(0)
        client.close()
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass
    shutil.rmtree(os.path.dirname(address))
    os._exit(0)


def watch(pid: int, client: socket.socket) -> None:
    program = os.pidfd_open(pid)
    while program not in (ready := select.select([program, client], [], [])[0]):
        told = client.recv(1) if ready else b""
        if told:
            os.kill(pid, told[0])
            continue
        os.kill(pid, signal.SIGTERM)
        if not select.select([program], [], [], PATIENCE_S)[0]:
            os.kill(pid, signal.SIGKILL)
        return
    client.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def become(request: dict[str, Any], files: list[int]) -> list[str]:
    """Makes this process that of the program; returns its arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    argv: list[str] = request["argv"]
    sys.orig_argv = [sys.executable, *argv]
    if argv[0] == "-u" or os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    dist.set_debug_level_from_env()
    random.seed()
    np.random.seed()
    return argv[argv[0] == "-u" :]


def run(kind: str, arguments: list[str]) -> None:
    """Runs a program as Python does: "-c" and a text, "-m" and a module, or a file."""
    if kind == "-m":
        sys.argv, sys.path[0] = arguments, os.getcwd()
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
        return
    if kind == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[1:]], ""
        text, name = arguments[0], "<string>"
    else:
        name = os.path.abspath(kind)
        sys.argv, sys.path[0] = [kind, *arguments], os.path.dirname(name)
        try:
            with open(name) as file:
                text = file.read()
        except OSError as error:
            print(f"{sys.executable}: can't open file {kind!r}: {error}", file=sys.stderr)
            sys.exit(2)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind != "-c":
        module.__file__ = name
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    kind, *arguments = become(*serve(sys.argv[1]))
    run(kind, arguments)
