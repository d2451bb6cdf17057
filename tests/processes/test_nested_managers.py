"""A server that has a manager of its own ends when its program does, and its own servers with it."""

import plain_servers
import psutil
import pytest
from application_side import servers
from process_ends import all_end


@pytest.mark.parametrize("kept", ["in a local variable", "for ever"])
@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 5)])
def test_a_server_with_servers_ends(how, code, kept):
    manager = servers(plain_servers.have_servers, args={"how": how, "kept": kept == "for ever"})
    try:
        own = [psutil.Process(int(pid)) for pid in manager.gather_actual_addresses(120)[1][0].split()]
        assert len(own) == 2
        (process,) = manager.processes
        process.join(20)  # it ends at once: its servers obey
        still_runs = process.is_alive()
        ended = not still_runs and all_end(own)
    finally:
        manager.shutdown(0)
    assert all_end(own)
    assert not still_runs, "the server hangs in its exit, with servers of its own that nobody ends"
    assert ended, "the server has ended, its own servers have not"
    assert process.exitcode == code


def test_a_killed_server_takes_its_servers_along():
    manager = servers(plain_servers.have_servers, args={"how": "wait", "kept": True})
    try:
        own = [psutil.Process(int(pid)) for pid in manager.gather_actual_addresses(120)[1][0].split()]
        manager.processes[0].kill()
        manager.processes[0].join(60)
        ended = all_end(own)
    finally:
        manager.shutdown(0)
    assert all_end(own)
    assert ended, "the servers of a killed server live on"
