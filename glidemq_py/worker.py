"""`python -m glidemq_py.worker TARGET`: entry point of the command implemented in `glidemq_py._worker.command`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from glidemq_py._core.command_line import PROGRAM
from glidemq_py._worker.command.arguments import TargetError, WorkerArguments, log_line, read_arguments
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = read_arguments(given)
    try:
        # Each imports only what it needs: a supervisor never imports GLIDE.
        if arguments.check:
            from glidemq_py._worker.command.health import check_health

            return check_health(arguments)
        if arguments.supervised and arguments.line is None:
            from glidemq_py._worker.command.supervisor import supervise

            return supervise(arguments, given)
        from glidemq_py._worker.command.child import run_workers

        return run_workers(arguments)
    except (TargetError, GlideMQValidationError) as error:
        return _complain(error, 2, arguments)
    except GlideMQError as error:
        return _complain(error, 1, arguments)


def _complain(error: GlideMQError, code: int, arguments: WorkerArguments) -> int:
    message = f"{PROGRAM.get() or 'python -m glidemq_py.worker'}: {error}"
    sys.stderr.write(log_line(arguments.log_format, logging.CRITICAL, "glidemq_py.worker", message) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
