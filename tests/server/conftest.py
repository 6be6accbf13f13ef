"""What only the tests of queues and workers need."""

import pytest

from glidemq_py._features.broadcast import worker as broadcast_source
from glidemq_py._job import waiting
from glidemq_py._worker import source, wake

NEVER_S = 3_600.0


@pytest.fixture
def without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle workers and waiters for results poll once an hour: what arrives in time was brought by a signal."""
    for module in (source, wake, broadcast_source):
        monkeypatch.setattr(module, "BLOCK_MS", int(NEVER_S * 1000))
    monkeypatch.setattr(wake, "_PATIENCE_S", 2 * NEVER_S)
    monkeypatch.setattr(waiting, "_FIRST_POLL_S", NEVER_S)
    monkeypatch.setattr(waiting, "_LAST_POLL_S", NEVER_S)
