"""Resolve TARGET to workers without a server, and validate command-line values."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Worker
from tests.inside import TargetError, WorkerArguments, base_worker, connection_of, keys_of
from tests.inside import target as target_module

Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Module]:
    """Return a function that writes a module into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names: list[str] = []

    def make(source: str) -> str:
        name = f"app_{abs(hash(request.node.nodeid)):x}_{len(names)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)


def load(target: str, **options: object) -> list[base_worker.BaseWorker]:
    return target_module.load_workers(WorkerArguments(target=target, **options))  # type: ignore[arg-type]


def refusal(target: str, **options: object) -> str:
    with pytest.raises(TargetError) as caught:
        load(target, **options)
    return str(caught.value)


SOURCE = """
    from glidemq_py import Queue, Worker

    async def handle(job): ...

    class Things:
        async def __call__(self, job): ...
        worker = Worker("inner", handle)

    worker = Worker("q", handle, concurrency=3)
    other = Worker("q", handle)
    both = [worker, other]
    pair = (worker, other)
    twice = [worker, worker]
    mixed = [worker, handle]
    nothing = []
    queue = Queue("q")
    callable_thing = Things()
"""


def test_a_worker_a_list_a_tuple_and_something_deeper(module: Module):
    name = module(SOURCE)
    assert [worker.queue_name for worker in load(f"{name}:worker")] == ["q"]
    assert len(load(f"{name}:both")) == len(load(f"{name}:pair")) == 2
    assert load(f"{name}:Things.worker")[0].queue_name == "inner"


def test_a_function_becomes_the_worker_of_a_queue(module: Module):
    name = module(SOURCE)
    for attribute in ("handle", "callable_thing"):
        (worker,) = load(f"{name}:{attribute}", queue="mails", concurrency=7, prefix="mine", url="valkey://h:1")
        assert worker.queue_name == "mails"
        assert worker.options.concurrency == 7
        assert keys_of(worker).meta == "mine:{mails}:meta"
        assert connection_of(worker) == "valkey://h:1"


def test_options_override_a_workers_own(module: Module):
    name = module(SOURCE)
    workers = load(f"{name}:both", concurrency=9)
    assert [worker.options.concurrency for worker in workers] == [9, 9]
    assert keys_of(load(f"{name}:worker")[0]).meta == "glide:{q}:meta"


def test_module_without_a_name_is_rejected_with_the_names_of_its_workers(module: Module):
    name = module("from glidemq_py import Worker\nshop = Worker('q')\n")
    for target in (name, f"{name}:", f"./{name}.py"):
        assert refusal(target) == f"{target!r} is not MODULE:NAME; did you mean {name}:shop?"
    several = module(SOURCE)
    assert refusal(several).endswith(f"; did you mean {several}:worker or {several}:other?")
    for source in ("worker = 1\n", "raise SystemExit(1)\n"):
        name = module(source)
        assert refusal(name) == f"{name!r} is not MODULE:NAME, such as {name}:worker"


def test_missing_module_is_rejected(module: Module):
    name = module(SOURCE)
    message = refusal(f"{name}x:worker")
    assert f"no module '{name}x'; did you mean '{name}'?" in message
    assert "current directory" in message
    assert "no module 'surely_not'; searched" in refusal("surely_not.at.all:worker")
    assert f"no module '{name}.inner'" in refusal(f"{name}.inner:worker")


def test_an_error_inside_the_module_is_shown_from_its_first_line_on(module: Module):
    missing = module("def deep():\n    import surely_not_there\n\ndeep()\n")
    message = refusal(f"{missing}:worker")
    assert "cannot be imported:" in message
    assert f"{missing}.py" in message
    assert "No module named 'surely_not_there'" in message
    assert "in deep" in message
    assert "importlib" not in message
    assert "target.py" not in message
    broken = module("def (:\n")
    assert "SyntaxError" in refusal(f"{broken}:worker")


def test_errors_in_the_module_are_shown_without_our_own_lines(module: Module):
    name = module("from glidemq_py import Worker\n\nworker = Worker('q', print, lifespan=lambda: None)\n")
    message = refusal(f"{name}:worker")
    assert f'{name}.py", line 3' in message
    assert "option 'lifespan' =" in message
    assert "must be a callable with the parameters (worker), not ()" in message
    assert "glidemq_py/worker" not in message


def test_a_script_that_ends_while_it_is_imported(module: Module):
    name = module("import sys\nsys.exit(4)\n")
    message = refusal(f"{name}:worker")
    assert "SystemExit(4)" in message
    assert "__main__" in message


def test_missing_attribute_is_rejected(module: Module):
    name = module(SOURCE)
    message = refusal(f"{name}:wroker")
    assert f"{name} has no attribute 'wroker'; did you mean 'worker'?" in message
    assert "it has the workers worker, other" in message
    assert f"{name}:Things has no attribute 'x'" in refusal(f"{name}:Things.x")


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("nothing", "is empty"),
        ("mixed", "[1] is a function, not a Worker"),
        ("twice", "the same Worker twice"),
        ("queue", "is a Queue:"),
        ("Things", "is the class Things:"),
        ("handle", "give its queue with --queue NAME"),
    ],
)
def test_object_of_another_type_is_rejected(module: Module, attribute: str, message: str):
    assert message in refusal(f"{module(SOURCE)}:{attribute}")


def test_a_task_is_not_a_worker(module: Module):
    name = module("""
        from glidemq_py import Worker
        worker = Worker("q")
        @worker.task("welcome")
        async def welcome(to: str): ...
    """)
    assert "name the Worker itself" in refusal(f"{name}:welcome", queue="q")


def test_queue_instead_of_a_worker_is_rejected(module: Module):
    assert "already has a queue: 'q'" in refusal(f"{module(SOURCE)}:worker", queue="other")


# -- Worker.override ----------------------------------------------------------------------------------------


async def test_override_checks_before_it_changes():
    async def handle(job: object): ...

    worker = Worker("q", handle, concurrency=3)
    with pytest.raises(GlideMQValidationError, match="concurrency"):
        worker.override(concurrency=0, prefix="mine")
    with pytest.raises(GlideMQValidationError, match="prefix"):
        worker.override(concurrency=5, prefix="a{b")
    assert (worker.options.concurrency, keys_of(worker).meta) == (3, "glide:{q}:meta")
    worker.override(concurrency=5, prefix="mine")
    assert (worker.options.concurrency, keys_of(worker).meta) == (5, "mine:{q}:meta")
    await worker.close()
    with pytest.raises(GlideMQError, match="in use"):
        worker.override(concurrency=4)
