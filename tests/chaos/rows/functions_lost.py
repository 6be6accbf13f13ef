"""Nodes lose the function library, or never had it; a foreign `glidemq` is loaded; two builds work side by side."""

from glidemq_py.testing import RespClient, server_binary
from tests.chaos.load_watch import FAULT, LoadWatch
from tests.chaos.other_build import other_build
from tests.chaos.replicated_cluster import ReplicatedCluster
from tests.chaos.run import QUEUE, ChaosRun

NUMBER = 5
TITLE = "a foreign `glidemq` library, two builds at once,"
VARIANTS = ("flushed", "node_without")
FOREIGN = "#!lua name=glidemq\nredis.register_function('glidemq_version', function() return 'foreign' end)\n"


def play(run: ChaosRun, variant: str):
    run.no_stalls = True
    (_flushed if variant == "flushed" else _node_without)(run)


def _flushed(run: ChaosRun):
    """FUNCTION FLUSH every five seconds."""
    server = run.start_server()
    watches = [run.closing(LoadWatch(server))]
    _start(run)
    for _ in run.faults(4, every=5, progress=60):
        _lose(run.client)
    _judge(run, watches)

    def check():
        listed = run.client.execute("FUNCTION", "LIST")
        names = {dict(zip(row[::2], row[1::2], strict=True))["library_name"] for row in listed}
        run.expect(len(names) == 3, f"two builds and a foreign library expected, not {sorted(names)}")

    run.checks.append(check)


def _node_without(run: ChaosRun):
    """The queue's slot moves to a node that does not have the library."""
    cluster = run.closing(ReplicatedCluster(server_binary("valkey-9.1")))
    cluster.start()
    run.use(cluster.url, cluster.bystander(QUEUE))
    primaries = cluster.nodes[:3]  # a replica also executes the loads of its primary
    watches = [run.closing(LoadWatch(node)) for node in primaries]
    _start(run)
    for _ in run.faults(3, every=5, progress=60):
        owner, _ = cluster.owner(QUEUE)
        for node in primaries:
            with node.client() as client:
                if node is owner:
                    client.execute("ECHO", FAULT)
                else:
                    _lose(client)
        cluster.move_slot(QUEUE)
        run.client.close()
        run.expect(run.progress(20), "no job is completed on a node that had no library")
    _judge(run, watches)


def _lose(client: RespClient):
    """Replace all function libraries of a node by a foreign one with our name."""
    client.execute("ECHO", FAULT)
    client.execute("FUNCTION", "FLUSH")
    client.execute("FUNCTION", "LOAD", "REPLACE", FOREIGN)


def _start(run: ChaosRun):
    other = other_build(run.folder / "other-build")
    run.fleet.worker(python_path=str(other))
    run.fleet.producer(rate=100, python_path=str(other))
    run.fleet_of(2, jobs=250, rate=100)


def _judge(run: ChaosRun, watches: list[LoadWatch]):
    def check():
        loads = [count for watch in watches for count in watch.loads.values()]
        run.expect(loads, "no client loaded the library")
        run.bound("loads per fault, client and node", max(loads, default=0), 1, "")
        run.expect(not run.ledger.errors and not run.ledger.unsure, f"errors: {run.ledger.errors} {run.ledger.unsure}")
        run.note(f"{sum(loads)} loads by {len({key[1] for watch in watches for key in watch.loads})} connections")

    run.checks.append(check)
