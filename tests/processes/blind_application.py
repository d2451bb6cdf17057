"""An application in a namespace of process numbers whose /proc is another one's. Run as ``blind_application.py FOLDER
FIRST``: its processes get numbers from FIRST on. Obeys words: see `main`.
"""

import os
import subprocess
import sys

import plain_servers
import process_numbers
from application_side import frontend, hear, say, servers


def ends(pid):
    """Whether this descendant, to which no /proc leads, ends within 30 s; it must not be a child of ours."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], 30)[0])


def main(folder, first):
    with open(process_numbers.LAST, "w") as file:
        file.write(first)
    bystander = subprocess.Popen(["sleep", "600"])
    server = servers(plain_servers.wait_with_a_stubborn_child)
    child = int(server.gather_actual_addresses(120)[1][0])
    pipe = os.path.join(folder, "pipe")
    os.mkfifo(pipe)
    front = frontend(os.path.join(folder, "frontend"), f"sleep 600 &\necho $! >{pipe}\nwait")
    with open(pipe) as file:
        below = int(file.read())
    say({"server": server.processes[0].pid, "frontend": front.processes[0].pid, "bystander": bystander.pid})
    hear()
    alive = [server.processes[0].is_alive(), front.processes[0].is_alive()]
    server.shutdown(0.5)
    front.shutdown()
    seen = {
        "alive before": alive,
        "codes": [server.processes[0].exitcode, front.processes[0].exitcode],
        "child ended": ends(child),
        "frontend's child ended": ends(below),
        "bystander": bystander.poll(),
    }
    bystander.kill()
    bystander.wait()
    say(seen)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
