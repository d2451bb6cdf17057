"""Signals at every moment of a manager's start: what they find installed stays, and nobody is left running."""

import ctypes
import os
import signal
import sys
import threading
import time

import plain_servers
import pytest
import signal_flags
from application_side import frontend, servers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and Linux's sigaction")


@pytest.fixture
def restarting():
    """A signal with a handler after which system calls are restarted."""
    before = signal.signal(signal.SIGUSR1, lambda signum, frame: None)
    signal.siginterrupt(signal.SIGUSR1, False)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def is_restarted(signum):
    """Whether a read that this signal interrupts goes on."""
    reader, writer = os.pipe()
    main = threading.get_ident()

    def interrupt():
        for _ in range(10):  # one of them, at least, finds it reading
            time.sleep(0.02)
            signal.pthread_kill(main, signum)
        os.write(writer, b"!")

    thread = threading.Thread(target=interrupt)
    thread.start()
    # Python's own read would begin again by itself.
    got = ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
    thread.join()
    os.close(reader)
    os.close(writer)
    return got == 1


def test_the_check_itself(restarting):
    assert signal_flags.restarts(restarting)
    assert is_restarted(restarting)
    signal.siginterrupt(restarting, True)
    assert not signal_flags.restarts(restarting)
    assert not is_restarted(restarting)


@pytest.mark.parametrize("kind", ["servers", "frontend"])
def test_handlers_and_their_flags_are_as_before(restarting, tmp_path, kind):
    before = signal_flags.everything()
    manager = servers(plain_servers.wait) if kind == "servers" else frontend(tmp_path / "f", "exec sleep 600")
    try:
        started = signal_flags.everything()
    finally:
        manager.shutdown()
    after = signal_flags.everything()
    for when, now in ("started", started), ("shut down", after):
        changed = {signal.Signals(number).name for number in before[0] if before[0][number] != now[0].get(number)}
        assert not changed, f"when the manager was {when}, the handlers or flags of these were not as before: {changed}"
        assert now[1:] == before[1:], f"when the manager was {when}, the mask or wake-up descriptor was not as before"
    assert is_restarted(restarting)


@pytest.mark.parametrize("deed", ["raise", "shut down"])
@pytest.mark.parametrize(("kind", "rounds"), [("servers", 60), ("frontend", 120)])
def test_an_interruption_at_any_moment(application, tmp_path, kind, rounds, deed):
    seen = application("interrupted_application", kind, deed, 1, rounds, tmp_path).answer(within=300)
    print(f"{seen['tried']} of {seen['moments']} moments")
    assert seen["moments"] > 50, "hardly any moment was found: does the manager start at all?"
    if seen["wrong"]:
        pytest.fail(f"of {seen['tried']} interruptions these went wrong:\n" + "\n".join(seen["wrong"]))
