"""An interpreter that has providers forked by a process with their imports; all else it starts as it is.

Called with that process's address, the true interpreter and its words, and without site and its imports: all
that it does is to ask, and to end as what was forked ends. What was forked ends with it.
"""

import json
import os
import signal
import socket
import sys

_, ADDRESS, TRUE, *WORDS = sys.argv


def serves() -> bool:
    """Whether the words are those of a provider's executable."""
    return len(WORDS) > 1 and WORDS[0] == "-c" and ".plugin import main; main()" in WORDS[1]


def forked() -> int:
    """Have it forked and wait for its end: its exit code, negative for a signal."""
    umask = os.umask(0)
    os.umask(umask)
    asked = {
        "words": ["-c", *WORDS[2:]],
        "code": WORDS[1],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "pid": os.getpid(),
        "umask": umask,
    }
    text = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(ADDRESS)
        socket.send_fds(line, [len(text).to_bytes(8, "big")], (0, 1, 2))
        line.sendall(text)
        for each in (0, 1, 2):
            os.close(each)  # who reads them waits for the fork alone
        with line.makefile() as told:
            return int(told.read().split()[-1])


if serves():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    CODE = forked()
    if CODE < 0:
        os.kill(os.getpid(), -CODE)
    os._exit(CODE)
os.execv(TRUE, [TRUE, *WORDS])
