"""Has a program run by server.py, and ends as it does."""

import json
import os
import signal
import socket
import sys

_folder, _name = os.path.split(sys.argv[0])
_argv = sys.argv[1:] if _name == "python" else ["-m", "torch.distributed.run", *sys.argv[1:]]
_request = {"argv": _argv, "cwd": os.getcwd(), "environ": dict(os.environ)}

_server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
_server.connect(os.path.join(_folder, "socket"))
socket.send_fds(_server, [json.dumps(_request).encode()], [0, 1, 2])
for _signal in ("INT", "TERM", "HUP", "USR1", "USR2"):
    signal.signal(getattr(signal, f"SIG{_signal}"), lambda number, _: _server.send(bytes([number])))
_status = int(_server.recv(100) or 70)
if _status < 0:
    if -_status != signal.SIGKILL:
        signal.signal(-_status, signal.SIG_DFL)
    os.kill(os.getpid(), -_status)
os._exit(_status)
