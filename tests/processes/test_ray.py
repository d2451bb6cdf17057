"""Supervision with engines that are real Ray actors. Needs ``ray``, which few machines have: skipped elsewhere."""

import multiprocessing
import threading
from types import SimpleNamespace

import pytest
import server_programs as programs

from fastutils import shutdown, wait_for_completion_or_failure

ray = pytest.importorskip("ray", reason="ray is not installed (pip install '.[ray]')")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def nothing_left():
    """Ray's own processes, threads and descriptors stay until the cluster's end: none of ours."""


class ActorEngines:
    """An engine manager whose engines are Ray actors: it waits for their endless calls, and names the first to end."""

    def __init__(self, count):
        @ray.remote
        class Engine:
            def __init__(self):
                self.ended = threading.Event()

            def run(self):
                self.ended.wait()

            def stop(self):
                self.ended.set()

            def fail(self):
                import os

                os._exit(1)

        self.actors = [Engine.options(max_concurrency=2).remote() for _ in range(count)]
        self.names = {actor.run.remote(): f"EngineCore_{index}" for index, actor in enumerate(self.actors)}
        self.failed_proc_name = None

    def monitor_engine_liveness(self):
        left = list(self.names)
        while left:
            (done,), left = ray.wait(left, num_returns=1)
            try:
                ray.get(done)
            except ray.exceptions.RayActorError:
                self.failed_proc_name = self.names[done]
                return


@pytest.fixture
def server():
    process = multiprocessing.get_context("spawn").Process(target=programs.wait_for_ever, name="ApiServer_0")
    process.start()
    yield process
    shutdown([process], 0)


@pytest.mark.usefixtures("cluster")
def test_the_death_of_an_actor_is_named(server):
    engines = ActorEngines(2)
    engines.actors[1].fail.remote()
    with pytest.raises(RuntimeError, match=r"^Engine core process EngineCore_1 died unexpectedly\.$"):
        wait_for_completion_or_failure(SimpleNamespace(processes=[server]), engines)
    assert server.is_alive()
    for actor in engines.actors:
        ray.kill(actor)


@pytest.mark.usefixtures("cluster")
def test_actors_that_end_well_leave_the_servers_to_be_watched(server):
    engines = ActorEngines(2)
    for actor in engines.actors:
        actor.stop.remote()
    monitor = engines.monitor_engine_liveness
    engines.monitor_engine_liveness = lambda: (monitor(), server.terminate())
    with pytest.raises(RuntimeError, match=r"^Process ApiServer_0 .* exit code -15: killed by SIGTERM$"):
        wait_for_completion_or_failure(SimpleNamespace(processes=[server]), engines)
