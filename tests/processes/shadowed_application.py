"""An application beside whose packages lie modules with the names of the standard library's; says how its server is."""

import os

import plain_servers
from application_side import say, servers

if __name__ == "__main__":
    import fastutils

    manager = servers(plain_servers.wait)
    try:
        error = None
        manager.gather_actual_addresses(60)
    except RuntimeError as caught:
        error = str(caught)
    manager.shutdown()
    say({"error": error, "package": os.path.dirname(fastutils.__file__)})
