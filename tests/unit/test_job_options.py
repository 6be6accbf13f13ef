"""Any options of jobs: stored and read back, merged, and the delays of a backoff."""

from hypothesis import assume, given
from hypothesis import strategies as st

from glidemq_py import Backoff, JobOptions, KeepJobs
from tests.inside import MAX_DURATION_MS, read_stored_options

VALUES = {
    "delay": st.integers(0, MAX_DURATION_MS),
    "attempts": st.integers(0, 1_000_000),
    "backoff": st.builds(
        Backoff,
        st.sampled_from(["fixed", "exponential", "mine"]),
        st.integers(0, 10**6),
        jitter=st.floats(0, 1),
    ),
    "job_id": st.from_regex(r"[a-z][a-zé0-9_-]{0,20}", fullmatch=True),
    "priority": st.integers(0, 2047),
    "lifo": st.booleans(),
    "ttl": st.integers(1, MAX_DURATION_MS),
    "timeout": st.integers(1, MAX_DURATION_MS),
    "remove_on_complete": st.booleans() | st.integers(1, 10**6) | st.builds(KeepJobs, age=st.integers(1, 10**6)),
    "remove_on_fail": st.booleans() | st.integers(1, 10**6) | st.builds(KeepJobs, count=st.integers(1, 10**6)),
    "lock_duration": st.integers(1000, 86_400_000),
}
GIVEN = st.fixed_dictionaries({}, optional=VALUES).filter(
    lambda given: not (given.get("lifo") and given.get("priority"))
)


@given(GIVEN)
def test_every_accepted_option_survives_storage(given_options):
    options = JobOptions.parse(given_options)
    assert read_stored_options(options.to_wire_json()) == options


@given(GIVEN, GIVEN)
def test_merging_is_merging_of_mappings(defaults, overrides):
    assume(not ((defaults | overrides).get("lifo") and (defaults | overrides).get("priority")))
    merged = JobOptions.merge(JobOptions.parse(defaults), JobOptions.parse(overrides))
    if overrides.get("attempts", 2) < 2 and "backoff" not in overrides:
        defaults.pop("backoff", None)
    assert merged == JobOptions.parse(defaults | overrides)


@given(
    st.sampled_from(["fixed", "exponential"]),
    st.integers(0, MAX_DURATION_MS),
    st.floats(0, 1),
    st.integers(0, 1_000_000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_an_int_within_bounds(kind, delay, jitter, attempts_made, draw):
    value = Backoff(kind, delay, jitter=jitter).compute(attempts_made, lambda: draw)
    assert type(value) is int
    assert delay <= value <= MAX_DURATION_MS
