"""On a terminal that stops what writes in the background (``stty tostop``), a printing server works, or one is told."""

import os
import pty
import threading

import pytest


@pytest.fixture
def terminal():
    """The path of a terminal whose screen is read, and shown when the test fails."""
    screen, terminal = pty.openpty()

    def read():
        try:
            while chunk := os.read(screen, 4096):
                print(chunk.decode(errors="replace"), end="")
        except OSError:  # nobody has the terminal open any more
            return

    reader = threading.Thread(target=read)
    reader.start()
    yield os.ttyname(terminal)
    os.close(terminal)
    reader.join(30)
    os.close(screen)


def test_a_server_that_prints(terminal, application):
    seen = application("terminal_application", terminal).answer(within=180)
    if not seen["works"]:
        assert "stopped" in seen["errors"][-1], f"a server was stopped by its terminal, and nobody says so: {seen}"
