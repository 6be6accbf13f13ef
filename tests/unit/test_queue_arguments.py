"""The argument ``--queue`` of the worker command, once or several times."""

import pytest

from glidemq_py._worker.command.arguments import read_arguments


@pytest.mark.parametrize(
    ("given", "queue"),
    [
        (["emails"], "emails"), (["emails", "images"], ["emails", "images"]),
        (["critical:6", "bulk:1"], {"critical": 6, "bulk": 1}), (["bulk:2"], {"bulk": 2}),
    ],
)  # fmt: skip
def test_queues_of_the_command_line(given: list[str], queue: object):
    arguments = read_arguments(["app:handle", *(part for name in given for part in ("--queue", name))])
    assert arguments.queue == queue


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["a", "a"], "twice"), (["a:1", "b"], "weight"), (["a:0"], "1 to 1,000"), (["a:x"], "1 to 1,000"),
        (["a:1001"], "1 to 1,000"), ([""], "queue"), (["a:1:2"], "1 to 1,000"),
    ],
)  # fmt: skip
def test_invalid_queues_exit_with_a_message(given: list[str], problem: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exited:
        read_arguments(["app:handle", *(part for name in given for part in ("--queue", name))])
    assert exited.value.code == 2
    assert problem in capsys.readouterr().err
