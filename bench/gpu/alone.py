"""Runs this program in a namespace without a network, where the machine permits that."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

from bench.gpu.bounded import ROOT

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def start_again(arguments: list[str]) -> None:
    """Replaces this process by one in a namespace; returns where that is not permitted."""
    tool = shutil.which("unshare")
    command = [tool or "", "--map-root-user", "--net"]
    if not tool or subprocess.run([*command, "true"], capture_output=True, timeout=20).returncode:
        return
    sys.stdout.flush()
    again = [sys.executable, str(ROOT / "bench/gpu"), *arguments, "--alone"]
    os.execv(tool, [*command, *again])


def enter(alone: bool) -> str:
    """Starts the loopback interface of a new namespace, and says which network there is."""
    if not alone:
        return "with the network: unshare is not permitted here"
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
    return "without a network"
