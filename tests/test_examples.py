"""Run every program under examples/ as a reader would, and check its output."""

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SECONDS = 100

# Program -> regular expressions that its output must match, in this order.
EXPECTED = {
    "quickstart": [r"added 1", r"welcome: hello ada"],
    "bulk": [
        r"10003 positions, the last two: added, duplicate",
        r"10002 completed, 0 left",
        rf"sum of squares: {sum(n * n for n in range(10_000)) + 1 + 4}",
    ],
    "durable_adds": [
        r"100 jobs are on the disk",
        r"after a crash: 100 jobs wait",
        r"received by 0 of 1 replicas within 200 ms",
        r"charge-100: duplicate",
    ],
    "ranks": [
        r"ready per rank: \{10000: 1, 5000: 1, 3000: 1, 0: 1, -10: 1\}",
        r"render again \(rank 10000\)",
        r"render for business \(rank 5000\)",
        r"render for free \(rank 0\)",
        r"clean up \(rank -10\)",
    ],
    "schedulers": [
        r"weekdays: 2027-01-08 07:30:00\+01:00",
        r"weekdays: 2027-01-11 07:30:00\+01:00",
        r"crawler ran often enough",
        r"second ran often enough",
    ],
    "delays_and_retries": [
        r"short delay done after 0 failures",
        r"timedelta done after 0 failures",
        r"instant done after 0 failures",
        r"retrying flaky: attempt 1 found nobody at home",
        r"retrying flaky: attempt 2 found nobody at home",
        r"flaky done after 2 failures",
        r"failed for good: UnrecoverableError: the address does not exist",
    ],
    "dependencies": [
        r"done: encode",
        r"done: announce",
        r"results of its dependencies: \['encode'\]",
        r"done: subtitles",
        r"publish waits for translate which is failed",
        r"done: translate",
        r"done: publish",
        r"rejected: 404",
    ],
    "unique_jobs": [
        r"index added",
        r"index skipped",
        r"report added",
        r"report skipped",
        r"draft 2 staged",
        r"draft 3 staged",
        r"newest: draft 3",
        r"published draft 1",
        r"published draft 3",
        r"removed: True",
    ],
    "failures": [
        r"job 1 failed: mail server is down",
        r"job 3 failed: no address",
        r"attempt 1: explicit_fail, ConnectionError, True",
        r"attempt 2: max_attempts_exceeded, ConnectionError, True",
        r"by reason: \{'explicit_fail': 1, 'max_attempts_exceeded': 2\}",
        r"deleted: 1",
        r"sent to (ada|bob)",
        r"sent to (ada|bob)",
        r"attempts kept after the requeue: 2",
    ],
    "timeline": [
        r"delayed for \d+ ms",
        r"waiting for \d+ ms",
        r"active for \d+ ms",
        r"delayed for \d+ ms",
        r"waiting for \d+ ms",
        r"active for \d+ ms",
        r"completed",
    ],
    "flows": [
        "anna: 3 pictures, 600 bytes, 1 left out",
        r"\{.*completed.*\}",
    ],
    "ordering": [
        r"create of bert: group rate limited",
        r"anna: create, update, invoice; next is number 4",
        r"bert: create, update, invoice; next is number 4",
        r"carla: create, update, invoice; next is number 4",
    ],
    "encryption": [r"not readable without the key", r"result: \{'receipt': '1111-250'\}"],
    "middleware": [
        r"rejected: tenant blocked may not add 'render'",
        r"tenant acme, request r-1: invoice 17",
        r"tenant globex, request r-2: sent invoice 18",
        r"measured: acme, globex",
    ],
    "many_queues": [
        r"strict order: emails, emails, emails, images, images, images",
        r"of the first 100 jobs: critical [567]0, default [234]0, bulk [12]0",
        r"300 jobs ran",
    ],
    "partitions": [
        "21 jobs wait",
        r"ann \[0, 1, 2, 3, 4\]",
        r"dee \[0, 1, 2, 3, 4\]",
        "report: completed",
    ],
    "iteration": [
        "invoice for ada",
        "invoice for bob",
        "invoice for cy",
        "deployed; continue after row 3",
        "invoice for dee",
        "invoice for eve",
        "the last attempt sent 2",
    ],
    "leases": [
        r"a\.png 200 ok",
        r"b\.png 200 ok",
        r"b\.png 200 ok",
        r"b\.png 409 not applied",
        r"2 completed",
    ],
    "backup": [
        "backup: 510 jobs",
        "lost: 0 delayed",
        "restored: 510 jobs",
        "10 completed, 500 delayed, in order: True",
        r"created: \[\('orders', 510\), \('invoices', 0\)\]",
        "due again: 0",
        "intact: 510 jobs",
    ],
    "maintenance": [
        r"completed: \[True\]",
        r"failed, to be retried: \[True, True\]",
        "released: 1",
        "stalled: True",
        "1 completed, 5 waiting",
    ],
    "metrics_by_name": [
        "charge: 1 completed, 1 retried",
        "notify: 20 completed, 0 retried",
        "render: 20 completed, 0 retried, slow",
        "notify waits longer than it runs: True",
    ],
    "limits": [
        "charge: at most 2 at a time; mail: more than 2: True",
        "limit of charge: 2 active: 0",
        r"during the incident: RateLimit\(max=1, duration=100\)",
        "afterwards: None",
    ],
    "schedules_without_overlap": [
        "at the same time: 1",
        "skipped some: True",
        "last runs: True",
        r"\[\('import', 'skip', True\), \('report', 'buffer_one', False\)\]",
    ],
    "bulk_operations": [
        r"queues: \['invoices', 'letters'\]",
        r"acme waits for: \['ada', 'bob'\]",
        "promoted: 3",
        "cancelled: revoked",
        "sent again: 5",
        "kept: completed",
        "deleted: 5 completed, 1 failed",
    ],
    "broadcast": [
        r"index: orders\.eu\.created, attempt 1",
        r"index: orders\.eu\.paid, attempt 2",
        r"mail: orders\.eu\.created",
        r"report: orders\.eu\.created",
        r"report: orders\.eu\.paid",
        r"index: 0 waiting, 0 active",
        r"mail: 0 waiting, 0 active",
        r"report: 0 waiting, 0 active",
    ],
    "streaming": [
        r"Jobs tell what they make while they make it\.",
        r"10 chunks: 9 tokens and a summary",
        r"completed with 9 tokens",
    ],
    "steps_order": [
        r"charged 1250 of customer 7",
        r"mailed ch-7 with page 1, page 2",
        r"order 7: delivered",
        r"charged 900 of customer 8",
        r"refunded ch-8",
        r"order 8: refunded",
        r"charge, cooling off, signal approval, refund",
    ],
    "steps_documents": [
        r"worker one: split report.txt",
        r"worker one is killed",
        r"\d+ words in 4 parts",
        r"split ran once",
    ],
    "steps_agent": [
        r"the model answers",
        r"search: weather in Rome",
        r"the model answers",
        r"asked a person",
        r"answer: sunny, as Ada says",
        r"calls of the model: 2",
    ],
    "suspend": [
        r"hotel waits: signal approval",
        r"suspended with signal approval",
        r"sent: True",
        r"sent: True",
        r"120 approved by eve, paid by bank transfer",
        r"taxi: signal 'approval' has not come within 100 ms",
        r"too late: False",
    ],
    "progress_and_events": [
        r"added holiday convert",
        r"progress holiday 25",
        r"progress holiday 100",
        r'completed holiday "converted"',
        r"step 1: holiday\.mov",
        r"step 4: holiday\.mov",
    ],
    "testing_in_memory": [
        r"what_was_enqueued: passed",
        r"what_a_handler_does: passed",
        r"days_in_a_moment: passed",
        r"the_worker_of_the_service: passed",
        r"several_queues: passed",
    ],
    "add_and_wait": [
        r"7 / 2 = 3\.5",
        r"halves: \[0\.0, 0\.5, 1\.0, 1\.5, 2\.0\]",
        r"1 / 0: ZeroDivisionError: division by zero",
        r"job '8' did not end within 50 ms",
    ],
    "blocking": [r"added 1, which is waiting", r"sum of 0\.\.9: 45", r"5 threads added 500", r"500 waiting"],
    "dashboard": [
        r"stranger: 403",
        r"alice sees: \['emails', 'salaries'\]",
        r"alice pauses emails: done",
        r"bob sees: \['emails'\]",
        r"bob pauses emails: 403",
        r"paused: True",
    ],
    "http_proxy": [r"201 .*'id': '1'", r"200 \{'result': 'HELLO'\}", r"401", r"completed 1"],
    "gateway_http": [r"ready: True", r"first event: job:pushed", r"result: 6", r"without a token: 401"],
    "gateway_web_socket": [
        r"subscribed: \['job:completed'\]",
        r"completed: True\n.*completed: True\n.*completed: True",
        r"results: \[3, 6, 10\]",
    ],
    "gateway_takeover": [r"a gateway is gone", r"completed: 6", r"results: \[0, 2, 4, 6, 8, 10\]", r"findings: 0"],
    "gateway_backup": [
        r"backed up",
        r"restored: 2",
        r"found by their ids: 2",
        r"result: shipped",
        r"continues with: True \{'item': 'lamp'\}",
        r"findings: 0",
    ],
    "webhook_receiver": [r"registered: True", r"job.pushed sums None", r"job.completed sums 6", r"forged: False"],
    "serverless": [r"event 1: added 1", r"event 2: added 2", r"event 3: there already", r"1 producer open"],
    "sandbox": [
        r"good done",
        r"crash: SandboxCrashError: the sandbox process ended with exit code 11",
        r"hang: JobTimeoutError: .*1500 ms",
        r"eat: MemoryError: the job needed more than the sandbox's memory_limit of 536870912 bytes",
        r"another done",
        r"log of good: \['half way'\]",
    ],
    "batch": [
        r"batch of 100, 99 stored",
        r"batch of 100, 100 stored",
        r"batch of 50, 50 stored",
        r"249 rows, mean 12\.48",
    ],
    "remote_control": [
        r"3 of 3 slots are busy",
        r"left for other workers: 1",
    ],
    "job_batches": [
        r"(archive|report) 6",
        r"(archive|report) 6",
        r"8 of 8 completed, 0 failed",
    ],
    "fair_shares": [
        r"start acme",
        r"start globex",
        r"start acme",
        r"backlog of acme is over 900: True",
    ],
    "usage_and_cost": [
        r"large: 2050 tokens, 0\.01025 USD",
        r"3 jobs: 6150 tokens, 0\.01230 USD",
        r"by model: \{'large': 1, 'small': 2\}",
    ],
    "tracing": [
        r"sent to ada@example\.org",
        r"traces: 1",
        r"POST /orders, of nobody",
        r"add mails, of POST /orders",
        r"process mails, of add mails",
        r"smtp, of process mails",
    ],
    "lifespan": [r"database opened for orders", r"database closed with 3 orders of 6 pieces"],
    "service": [
        r"POST /reports -> 202 \{'job': '1'\}",
        r"GET /reports/1 -> 200 .*'state': 'completed'.*'result': 'report of 2025'",
        r"GET /reports/999 -> 404",
    ],
    "with_fastapi": [
        r"POST /reports/2025 -> 202 \{'job': '1'\}",
        r"GET /reports/1\?wait=30 -> 200 \{'state': 'completed', 'result': 'report of 2025'\}",
        r"GET /reports/999 -> 404",
    ],
    "with_starlette": [
        r"POST /welcome/ada -> 202 \{'job': '1'\}",
        r"GET /jobs/1 -> 200 \{'state': 'completed', 'result': 'sent to ada'\}",
        r"GET /jobs/999 -> 404",
    ],
    "with_flask": [r"202 \{'job': '1'\}", r"202 \{'job': '2'\}", r"shop@example\.org writes to (ada|bob), job [12]"],
    "with_django": [
        r"jobs before the commit: 0",
        r"jobs before the commit: 1",
        r"rolled back: no gear in stock",
        r"jobs: 1",
        r"shipped nut at attempt 2 of 5",
    ],
    "with_sentry": [
        r"3 events, 1 trace",
        r"transaction POST /welcome \['queue\.publish'\]",
        r"error ConnectionError no route to host .*'glidemq\.job_id': '1'",
        r"transaction welcome \['queue\.process'\]",
    ],
    "with_pydantic": [
        r"resized a\.png to 640x480",
        r"job 1: kind='resized' size=307200",
        r"not added: .*greater than 0",
        r"job 2 failed: .*width",
    ],
    "with_structlog": [
        r'"event": "adding", "request_id": "8f3a"',
        r'"event": "sending", "job_id": "1", .*"queue": "emails", "request_id": "8f3a"',
        r'\{"event": "done"\}',
    ],
    "with_sqlalchemy": [
        r"ada: 0 jobs before the commit",
        r"mallory: rolled back, not welcome",
        r"bob: 1 jobs before the commit",
        r"welcome, user 1",
        r"welcome, user 2",
    ],
    "graceful_shutdown": [
        r"closing",
        r"part 0 done",
        r"closed",
        r"1 completed, 2 waiting, 0 stranded",
        r"all closed",
    ],
}
ELSEWHERE = {"demo", "gateway_npm_client", "test_emails", "test_endpoints", "test_fixtures", "typed_tasks"}
"""Run by tests of their own: here, with the npm client, and with the typed tasks."""


def environment() -> dict[str, str]:
    """Return our environment without a server address, with the package importable."""
    kept = {name: text for name, text in os.environ.items() if name not in ("GLIDEMQ_URL", "GLIDEMQ_TEST_SERVER")}
    path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}


def run(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Run Python with these arguments and return its output; its errors must be no tracebacks."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=SECONDS, env=environment(), cwd=cwd, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # The log of failing jobs has tracebacks too, indented.
    assert not re.search(r"(?m)^Traceback", ended.stderr), ended.stderr
    return ended.stdout


def assert_in_order(output: str, patterns: list[str]):
    position = 0
    for pattern in patterns:
        found = re.compile(pattern).search(output, position)
        assert found is not None, f"{pattern!r} is not where it should be in:\n{output}"
        position = found.end()


@pytest.mark.parametrize("name", EXPECTED)
def test_example_prints_the_expected_output(name: str, tmp_path: Path):
    output = run(EXAMPLES / f"{name}.py", cwd=tmp_path)
    assert_in_order(output, EXPECTED[name])
    assert list(tmp_path.iterdir()) == [], "it left something in the directory it ran in"


def test_every_example_is_run():
    programs = {path.stem for path in EXAMPLES.glob("*.py")}
    assert programs <= EXPECTED.keys() | ELSEWHERE
    assert EXPECTED.keys() <= programs


@pytest.mark.parametrize(("name", "count"), [("test_emails", 2), ("test_endpoints", 4), ("test_fixtures", 4)])
def test_the_pytest_examples_pass(name: str, count: int):
    registered = any(point.name == "glidemq" for point in importlib.metadata.entry_points(group="pytest11"))
    plugin = [] if registered else ["-p", "glidemq_py.testing.pytest_plugin"]
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, EXAMPLES / f"{name}.py", cwd=ROOT)
    assert f"{count} passed" in output


# -- the demo ---------------------------------------------------------------------------------------------------


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Two hundred small modules, two of which are no Python."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for n in range(198):
        body = "".join(f"    if x > {i}:\n        x -= 1\n" for i in range(n % 7))
        (folder / f"module_{n:03}.py").write_text(f"class C{n}:\n    pass\n\n\ndef f{n}(x):\n{body}    return x\n")
    (folder / "old.py").write_text("print 'hello'\n")
    (folder / "binary.py").write_bytes(b"x = '\xff'\n")
    return folder


def workers_of(output: str) -> list[str]:
    """The demo's worker processes that still run, found by the server that its output names."""
    address = re.search(r"valkey://(\S+)", output)
    assert address is not None
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            environment = (process / "environ").read_text(errors="replace")
            if re.search(rf"GLIDEMQ_URL=\S*@{re.escape(address[1])}", environment):
                found.append(process.name)
    return found


def test_demo_measures_every_module(modules: Path):
    output = run(EXAMPLES / "demo.py", "--source", modules, "--processes", "2")
    assert_in_order(
        output,
        [
            r"200 modules of ",
            r"2 worker processes on valkey://127\.0\.0\.1:\d+",
            r"200 jobs added in \d+ ms",
            r"200/200 100%",
            r"Largest modules\n",
            r"Most complex functions\n +module +function +branches\n +module_006\.py +f6 +7\n",
            r"Slowest to measure\n",
            r"Failed for good: 2 files",
            r"binary\.py\n +SyntaxError: ",
            r"old\.py\n +SyntaxError: Missing parentheses",
            r"jobs +200 \(198 completed, 2 failed for good\)",
            r"retries +[1-9]\d*, all successful",
            r"jobs per second +[\d,]+, in ",
            r"add to completion +p50 \d+ ms, p99 ",
        ],
    )
    assert workers_of(output) == [], "a worker process was left behind"


def test_demo_with_a_killed_worker_completes_every_job_once(modules: Path):
    output = run(EXAMPLES / "demo.py", "--source", modules, "--processes", "2", "--kill")
    assert_in_order(
        output, [r"killed worker process \d+", r"jobs +200 \(198 completed, 2 failed for good\)", r"recovered +\d"]
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_demo_leaves_no_process_when_it_is_killed():
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py"), "--processes", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as lines, process:
        output = ""
        while "jobs added" not in output:
            output += lines.readline()
        running = len(workers_of(output))
        process.kill()
        # The workers hold the other end of this pipe: it ends when the last of them has.
        lines.read()
    assert running == 2
    assert workers_of(output) == []
