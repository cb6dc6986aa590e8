"""Many SSH hosts on the loopback addresses of this machine: one process, one address for each.

`python -m bench.sshfarm FOLDER COUNT` makes the keys in FOLDER, says the port, and serves until its stdin
ends. A command is not run: each host answers with its words, or with the text of FOLDER/answer where that is
there, as fast as can be. Hosts 0 to COUNT-1 are well,
the next five take connections and never say a word, and those after them refuse.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh

from bench.fanout import HANGING, address


class Guest(asyncssh.SSHServer):
    """Lets in whoever has the one key."""

    def __init__(self, public: asyncssh.SSHKey) -> None:
        self._public = public

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.public_data == self._public.public_data


def answering(text: str | None) -> Callable[[asyncssh.SSHServerProcess[str]], Awaitable[None]]:
    async def answer(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write(f"{process.command}\n" if text is None else text)
        process.exit(0)

    return answer


async def serve(folder: Path, count: int) -> None:
    told = folder / "answer"
    host, client = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    host.write_public_key(folder / "host.pub")
    client.write_private_key(folder / "key")
    (folder / "key").chmod(0o600)
    mute = [socket.create_server((address(count), 0), backlog=64)]
    port = mute[0].getsockname()[1]
    mute += [socket.create_server((address(count + i), port), backlog=64) for i in range(1, HANGING)]
    server = await asyncssh.listen(
        [address(number) for number in range(count)],
        port,
        server_host_keys=[host],
        server_factory=lambda: Guest(client),
        process_factory=answering(told.read_text() if told.exists() else None),
        backlog=256,
        login_timeout=60,
    )
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
