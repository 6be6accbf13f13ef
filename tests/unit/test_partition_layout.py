"""The layout of a partitioned queue: slots, names, routing and ids."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py._core.keys import validate_job_id
from glidemq_py._partitions.routing import candidates
from glidemq_py.errors import GlideMQValidationError
from tests.inside import (
    MAX_PARTITIONS,
    Layout,
    Partition,
    partition_id,
    partition_names,
    partition_of_key,
    partition_slots,
    shares,
    split_partition_id,
)

THREE_PRIMARIES = (range(5_461), range(5_461, 10_923), range(10_923, 16_384))
"""The ranges that `valkey-cli --cluster create` assigns."""


@pytest.mark.parametrize("count", [3, 4, 6, 8, 16])
def test_every_primary_has_its_share_for_every_name(count: int):
    for first in range(16_384):
        slots = partition_slots(first, count)
        assert slots[0] == first
        shares = [sum(slot in primary for slot in slots) for primary in THREE_PRIMARIES]
        assert sum(shares) == count
        # 4 and 16 leave one over; partition 0 may be on the other side of a border.
        assert max(shares) - min(shares) <= (0 if count % 3 == 0 else 2)
        assert min(shares) >= (count - 1) // 3


@pytest.mark.parametrize("count", [1, 2, 3, 8, 256])
def test_keys_are_spread_evenly(count: int):
    keys = 400 * count
    jobs = Counter(partition_of_key(f"tenant-{at}", count) for at in range(keys))
    assert set(jobs) == set(range(count))
    assert min(jobs.values()) > 300


@given(st.integers(0, MAX_PARTITIONS - 1), st.text(min_size=1) | st.from_regex(r"[0-9]{1,4}\|\|.+", fullmatch=True))
def test_ids_name_exactly_one_job(partition: int, job_id: str):
    assert split_partition_id(partition_id(partition, job_id)) == (partition, job_id)


OWN_IDS = st.one_of(st.from_regex(r"[0-9]{1,3}~?[0-9a-z~-]{0,4}", fullmatch=True), st.integers(1, 10**6).map(str))


@given(st.integers(0, MAX_PARTITIONS - 1), OWN_IDS, st.integers(0, MAX_PARTITIONS - 1), OWN_IDS)
def test_prefixes_of_ids_are_different(first: int, one: str, second: int, other: str):
    found, others = Partition(first, "q").id_prefix_of(one), Partition(second, "q").id_prefix_of(other)
    assert (found == others) == ((first, one) == (second, other))
    assert validate_job_id(f"{found}-1") == f"{found}-1"


ROOT = Path(__file__).resolve().parents[2] / "glidemq_py"

EIGHT = Layout(1, partition_names("q", 8))


@given(st.integers(0, 7), st.text(min_size=1, max_size=9))
def test_an_id_leads_to_its_partition(number: int, own: str):
    shown = Partition(number, "q").id_of(own)
    found = candidates(shown, EIGHT)
    assert (number, own) in found
    if number:
        assert found == [(number, own)]


@given(st.integers(1, 256), st.integers(0, 10_000))
def test_shares_add_up(partitions: int, total: int):
    if 0 < total < partitions:
        with pytest.raises(GlideMQValidationError):
            shares("n", total, partitions)
        return
    found = shares("n", total, partitions)
    assert sum(found) == total
    assert max(found) - min(found) <= 1
    assert not total or min(found) >= 1


_WRONG = re.compile(r"\.keys\.(?:meta, |\w+\()(?:self|job|run\.job)\.id\b")
_OTHER_IDS = ("_api/job_batch.py", "_features/flows/plan.py")
"""Files whose `self.id` or `job.id` is not that of a `Job`."""


def test_server_calls_contain_the_stored_ids_of_jobs():
    # `Job.id` names the partition; the keys and calls of a partition know only the job's own id.
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("_api", "_job", "_features", "_worker")
        for path in (ROOT / folder).rglob("*.py")
        if not str(path).endswith(_OTHER_IDS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if _WRONG.search(line)
    ]
    assert found == []
