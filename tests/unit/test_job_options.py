"""Job options: validation, merging, and the opts JSON compared with the original's."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from glidemq_py import Backoff, Deduplication, FlowJob, JobOptions, JobSpec, KeepJobs
from glidemq_py._core.job_option_rules import check_effect
from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from tests.inside import MAX_DURATION_MS, NO_OPTIONS, UNSUPPORTED, QueueOptions, read_stored_options

# The opts of the recorded jobs of each kind: golden attempts, customId, delayed, timeout and others.
RECORDED = [
    ({}, "{}"),
    (
        {"attempts": 3, "backoff": {"type": "fixed", "delay": 50}},
        '{"attempts":3,"backoff":{"type":"fixed","delay":50}}',
    ),
    (
        {"attempts": 3, "backoff": Backoff("exponential", timedelta(milliseconds=50))},
        '{"attempts":3,"backoff":{"type":"exponential","delay":50}}',
    ),
    ({"job_id": "custom-a-0"}, '{"jobId":"custom-a-0"}'),
    ({"delay": 60_050}, '{"delay":60050}'),
    ({"priority": 3, "delay": timedelta(minutes=1)}, '{"priority":3,"delay":60000}'),
    ({"timeout": timedelta(seconds=5)}, '{"timeout":5000}'),
    ({"ttl": 1}, '{"ttl":1}'),
    ({"lifo": True}, '{"lifo":true}'),
    ({"remove_on_complete": True}, '{"removeOnComplete":true}'),
    ({"remove_on_complete": 1}, '{"removeOnComplete":1}'),
    ({"remove_on_complete": {"age": 3600, "count": 5}}, '{"removeOnComplete":{"age":3600,"count":5}}'),
]


@pytest.mark.parametrize(("options", "recorded"), RECORDED, ids=[text for _, text in RECORDED])
def test_opts_json_is_the_recorded_one(options, recorded):
    written = JobOptions.parse(options).to_wire_json()
    assert json.loads(written) == json.loads(recorded)
    assert " " not in written


@pytest.mark.parametrize(("options", "recorded"), RECORDED, ids=[text for _, text in RECORDED])
def test_stored_options_are_read_back(options, recorded):
    assert read_stored_options(recorded) == JobOptions.parse(options)


def test_nothing_given_is_one_constant():
    assert JobOptions.parse(None) is NO_OPTIONS
    assert JobOptions.parse({}) is NO_OPTIONS
    assert NO_OPTIONS.to_wire_json() == "{}"
    assert JobOptions.parse(NO_OPTIONS) is NO_OPTIONS
    assert JobOptions.parse({"delay": None, "attempts": None}) == NO_OPTIONS


def test_given_defaults_are_written():
    given_options = JobOptions(delay=0, priority=0, lifo=False, attempts=0, remove_on_fail=False)
    assert given_options.to_wire() == {
        "delay": 0,
        "priority": 0,
        "lifo": False,
        "attempts": 0,
        "removeOnFail": False,
    }


def test_wire_text_is_made_once():
    options = JobOptions(job_id="ž-😀")
    assert options.to_wire_json() == '{"jobId":"ž-😀"}'
    assert options.to_wire_json() is options.to_wire_json()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delay", -1),
        ("delay", 1.0),
        ("delay", True),
        ("delay", "1000"),
        ("delay", MAX_DURATION_MS + 1),
        ("delay", timedelta(seconds=-1)),
        ("run_at", 1_800_000_000_000),
        ("run_at", "tomorrow"),
        ("attempts", -1),
        ("attempts", True),
        ("attempts", 3.0),
        ("attempts", 1_000_001),
        ("backoff", "fixed"),
        ("priority", -1),
        ("priority", 2048),
        ("priority", 1.0),
        ("lifo", 1),
        ("lifo", "yes"),
        ("ttl", 0),
        ("ttl", -1),
        ("timeout", 0),
        ("timeout", timedelta(0)),
        ("timeout", 0.5),
        ("lock_duration", 999),
        ("lock_duration", 86_400_001),
        ("remove_on_complete", -1),
        ("remove_on_complete", 1.0),
        ("remove_on_complete", "all"),
        ("remove_on_complete", {}),
        ("remove_on_fail", []),
        ("job_id", ""),
        ("job_id", 7),
        ("job_id", "007"),
        ("job_id", "0"),
        ("job_id", str(10**13 + 1)),
        ("job_id", "9" * 400),
        ("job_id", "a:b"),
        ("job_id", "a{b"),
        ("job_id", "a}b"),
        ("job_id", "a\nb"),
        ("job_id", "a\x7fb"),
        ("job_id", "a||b"),
        ("job_id", "x" * 257),
        ("job_id", "😀" * 129),
        ("job_id", "\ud800"),
    ],
)
def test_invalid_values_are_rejected_by_name(option, value):
    with pytest.raises(GlideMQValidationError) as caught:
        JobOptions.parse({option: value})
    assert caught.value.option == option
    assert option in str(caught.value)
    with pytest.raises(GlideMQValidationError):
        JobOptions(**{option: value})


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("backoff", {"type": "fixed", "delay": -1}, "backoff.delay"),
        ("remove_on_complete", {"age": 0}, "remove_on_complete.age"),
        ("remove_on_complete", {"age": 1.5}, "remove_on_complete.age"),
        ("remove_on_complete", {"age": timedelta.max}, "remove_on_complete.age"),
        ("remove_on_complete", {"age": timedelta.min}, "remove_on_complete.age"),
        ("remove_on_fail", {"count": -1}, "remove_on_fail.count"),
        ("remove_on_fail", {"Count": 1}, "remove_on_fail.Count"),
    ],
)
def test_invalid_parts_are_rejected_by_name(option, value, named):
    with pytest.raises(GlideMQValidationError) as caught:
        JobOptions.parse({option: value})
    assert caught.value.option == named


@pytest.mark.parametrize(
    "job_id", ["1", "7", str(10**13), "a", "0a", "a-b_c.d@e", "x" * 256, "日本語", "a|b", "-1", "٣"]
)
def test_good_ids(job_id):
    assert JobOptions(job_id=job_id).job_id == job_id


def test_an_empty_mapping_of_another_type_is_no_error_but_other_types_are():
    wrong: Any
    for wrong in ([], "", 0, (), [("delay", 1)], "delay"):
        with pytest.raises(GlideMQValidationError, match="must be a mapping"):
            JobOptions.parse(wrong)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("removeOnComplete", "remove_on_complete"),
        ("jobId", "job_id"),
        ("lockDuration", "lock_duration"),
        ("runAt", "run_at"),
        ("attemps", "attempts"),
        ("prioritiy", "priority"),
        ("time_out", "timeout"),
        ("zzz", None),
    ],
)
def test_misuse_is_rejected_with_a_suggestion(name, suggestion):
    with pytest.raises(UnknownOptionError) as caught:
        JobOptions.parse({name: 1})
    assert caught.value.option == name
    assert caught.value.suggestion == suggestion


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_options_are_rejected(name):
    with pytest.raises(GlideMQValidationError, match=name):
        JobOptions.parse({name: 1})
    assert JobOptions.parse({name: None}) == NO_OPTIONS


def test_an_option_name_must_be_text():
    with pytest.raises(GlideMQValidationError, match="must be str"):
        JobOptions.parse({1: 2})  # type: ignore[dict-item]


# -- run_at -------------------------------------------------------------------------------------------------


def test_run_at_is_an_instant_and_is_not_stored():
    options = JobOptions(run_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert options.run_at_ms == 1_893_456_000_000
    assert options.to_wire_json() == "{}"
    assert NO_OPTIONS.run_at_ms is None


def test_run_at_excludes_delay():
    with pytest.raises(GlideMQValidationError, match="'delay' and 'run_at' are mutually exclusive"):
        JobOptions(run_at=datetime(2030, 1, 1, tzinfo=UTC), delay=0)


# -- retention ----------------------------------------------------------------------------------------------


def test_retention_of_zero_removes_immediately():
    none: Any
    for none in (0, True, {"count": 0}, {"count": 0, "age": 60}):
        options = JobOptions(remove_on_complete=none)
        assert options.remove_on_complete is True
        assert options.to_wire() == {"removeOnComplete": True}


def test_retention_by_age():
    options = JobOptions(remove_on_fail=KeepJobs(age=timedelta(hours=1)))
    assert options == JobOptions(remove_on_fail={"age": 3600, "count": None})  # type: ignore[arg-type]
    assert options.to_wire() == {"removeOnFail": {"age": 3600}}
    with pytest.raises(GlideMQValidationError):
        KeepJobs()


# -- merging ------------------------------------------------------------------------------------------------


def test_given_options_win_over_defaults():
    defaults = JobOptions(attempts=3, timeout=5000, delay=100)
    merged = JobOptions.merge(defaults, JobOptions(attempts=0, job_id="a"))
    assert merged == JobOptions(attempts=0, timeout=5000, delay=100, job_id="a")
    assert JobOptions.merge(defaults, NO_OPTIONS) is defaults
    assert JobOptions.merge(NO_OPTIONS, defaults) is defaults


def test_a_single_attempt_has_no_backoff():
    defaults = JobOptions(attempts=3, backoff=1_000, timeout=5)
    assert JobOptions.of_job(defaults, JobOptions(attempts=1)) == JobOptions(attempts=1, timeout=5)
    assert JobOptions.of_job(defaults, JobOptions(attempts=2)).backoff == defaults.backoff
    with pytest.raises(GlideMQValidationError, match="requires 'attempts' of at least 2"):
        JobOptions.of_job(defaults, JobOptions(attempts=1, backoff=2))


def test_delay_and_run_at_displace_one_another():
    instant = datetime(2030, 1, 1, tzinfo=UTC)
    assert JobOptions.merge(JobOptions(delay=5), JobOptions(run_at=instant)) == JobOptions(run_at=instant)
    assert JobOptions.merge(JobOptions(run_at=instant), JobOptions(delay=5)) == JobOptions(delay=5)


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


def test_conflicting_default_and_option():
    with pytest.raises(GlideMQValidationError, match="'lifo' and 'priority' are mutually exclusive"):
        JobOptions.merge(JobOptions(lifo=True), JobOptions(priority=1))
    assert JobOptions.merge(JobOptions(lifo=True), JobOptions(priority=1, lifo=False)).priority == 1
    assert JobOptions.merge(JobOptions(lifo=True), JobOptions(priority=0)).lifo is True


@pytest.mark.parametrize(
    ("default", "own", "message"),
    [
        (
            {"fair_key": "t"},
            {"ordering": "g"},
            r"^option 'ordering' = .*: options 'fair_key' and 'ordering' are mutually exclusive: 'fair_key' = 't' is a "
            r"default option of the queue or task; pass fair_key=None to add",
        ),
        ({"fair_key": "t"}, {"rank": 5}, "^option 'rank' = 5: .*pass fair_key=None"),
        ({"lifo": True}, {"fair_key": "t"}, "^option 'fair_key' = 't': .*'lifo' = True is a default option of the "),
        ({"ordering": "g"}, {"lifo": True}, "pass ordering=None to add"),
        ({"priority": 3}, {"lifo": True}, "pass priority=0"),
        ({"rank": 3}, {"fair_key": "t"}, "pass rank=0 "),
        ({"lifo": True}, {"priority": 3}, "pass lifo=False "),
        ({"deduplication": {"id": "d"}}, {"parent": ("q", "1")}, "pass deduplication=None "),
    ],
)
def test_conflict_with_a_default_names_the_default(default: Any, own: Any, message: str):
    with pytest.raises(GlideMQValidationError, match=message):
        JobOptions.merge(JobOptions(**default), JobOptions(**own))


@pytest.mark.parametrize(
    ("defaults", "off"),
    [
        ({"ttl": 5}, {"ttl": None}), ({"timeout": 5}, {"timeout": None}),
        ({"lock_duration": 5_000}, {"lock_duration": None}),
        ({"ordering": "g"}, {"ordering": None}), ({"ordering": "g", "cost": 5}, {"ordering": None}),
        ({"deduplication": {"id": "d"}}, {"deduplication": None}), ({"fair_key": "t"}, {"fair_key": None}),
        ({"tags": ["t"]}, {"tags": []}), ({"fallbacks": ["m"]}, {"fallbacks": []}),
        ({"headers": {"a": "b"}}, {"headers": {}}),
    ],
)  # fmt: skip
def test_value_that_switches_a_default_off(defaults: Any, off: Any):
    assert JobOptions.merge(JobOptions(**defaults), JobOptions(**off)).to_wire() == {}
    # Of a task with options of its own, too.
    task = JobOptions.merge(JobOptions(**defaults), JobOptions(attempts=2))
    assert JobOptions.merge(task, JobOptions(**off)).to_wire() == {"attempts": 2}


def test_cost_none_overrides_a_default():
    merged = JobOptions.merge(JobOptions(ordering="g", cost=5), JobOptions(cost=None))
    assert merged.to_wire() == {"ordering": {"key": "g"}}
    merged = JobOptions.merge(JobOptions(ordering="g", cost=5), JobOptions(ordering="h"))
    assert merged.to_wire() == {"ordering": {"key": "h"}, "cost": 5}


@pytest.mark.parametrize(
    ("option", "value", "makes_sense_with"),
    [
        ("backoff", 100, {"attempts": 2}),
        ("fallbacks", ["gpt"], {"attempts": 2}),
        ("on_failure", "ignore", {"parent": ("q", "1")}),
    ],
)
def test_options_without_effect_are_rejected(option, value, makes_sense_with):
    given, other = JobOptions(**{option: value}), JobOptions(**makes_sense_with)
    for defaults in (NO_OPTIONS, JobOptions(attempts=1), JobOptions(timeout=5)):
        with pytest.raises(GlideMQValidationError, match=f"option '{option}' = .*: requires"):
            JobOptions.of_job(defaults, given)
    for defaults, own in ((other, given), (given, other), (NO_OPTIONS, JobOptions.merge(given, other))):
        assert getattr(JobOptions.of_job(defaults, own), option) == getattr(given, option)
    # A default may have no effect on some jobs.
    assert getattr(JobOptions.of_job(given, JobOptions(timeout=5)), option) == getattr(given, option)
    assert JobOptions.of_job(given, NO_OPTIONS) is given


def test_flows_know_the_parents():
    check_effect(JobOptions(on_failure="ignore"), JobOptions(on_failure="ignore"), of_flow=True)
    with pytest.raises(GlideMQValidationError, match="backoff"):
        FlowJob("a", "q", options={"backoff": 5})


# -- stored options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "7", '"x"', "{}", '{"x":1}', "[" * 100_000, '{"delay":null}'])
def test_stored_junk_counts_as_nothing(text):
    assert read_stored_options(text) == NO_OPTIONS


def test_one_bad_stored_option_does_not_take_the_others_along():
    text = '{"attempts":-3,"backoff":"soon","timeout":500,"delay":1.5,"removeOnFail":0,"ordering":{"key":"k"},"lifo":1}'
    assert read_stored_options(text) == JobOptions(timeout=500, remove_on_fail=False, ordering="k")


def test_options_of_peers_that_we_reject_are_read():
    stored = read_stored_options(
        '{"lifo":true,"priority":3,"deduplication":{"id":"d","ttl":5},"backoff":{"type":"fixed","delay":5}}'
    )
    assert stored == JobOptions(priority=3, deduplication={"id": "d", "ttl": 5}, backoff=5)
    assert read_stored_options('{"lifo":true,"priority":0}') == JobOptions(lifo=True, priority=0)
    debounce = read_stored_options('{"deduplication":{"id":"d","ttl":5,"mode":"debounce"}}').deduplication
    assert debounce == Deduplication("d", 5, "debounce")


def test_stored_retention_of_zero_keeps_all_as_its_writer_meant():
    assert read_stored_options('{"removeOnComplete":0}').remove_on_complete is False
    assert read_stored_options('{"removeOnComplete":{"age":60,"count":0}}').remove_on_complete == KeepJobs(age=60)
    assert read_stored_options('{"removeOnComplete":{"age":0,"count":0}}').remove_on_complete is False


# -- specs and queue options --------------------------------------------------------------------------------


def test_job_specs():
    assert JobSpec.parse(("welcome",)) == JobSpec("welcome")
    assert JobSpec.parse(["digest", {"to": "y"}, {"attempts": 3}]) == JobSpec(
        "digest", {"to": "y"}, JobOptions(attempts=3)
    )
    assert JobSpec("a").options is NO_OPTIONS
    spec = JobSpec("a", 1)
    assert JobSpec.parse(spec) is spec


@pytest.mark.parametrize(
    "value",
    [
        (),
        ("a", 1, {}, 4),
        "welcome",
        {"nme": "a"},
        {},
        7,
        None,
        ("",),
        (7,),
        ("a", 1, {"delai": 1}),
        ("a", 1, []),
    ],
)
def test_invalid_specs_are_rejected(value):
    with pytest.raises(GlideMQValidationError):
        JobSpec.parse(value, "jobs[3]")


@pytest.mark.parametrize("name", ["", 7, None, b"x", "x" * 1025, "\ud800"])
def test_invalid_job_names_are_rejected(name):
    with pytest.raises(GlideMQValidationError, match="option 'name'"):
        JobSpec(name)


def test_queue_options():
    options = QueueOptions(default_job_options={"attempts": 3}, compression="gzip", events=False)
    assert options.prefix == "glide"
    assert options.default_job_options == JobOptions(attempts=3)
    assert QueueOptions().default_job_options is NO_OPTIONS


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefix": "{x}"},
        {"prefix": ""},
        {"default_job_options": {"job_id": "a"}},
        {"default_job_options": {"delay": -1}},
        {"compression": "zip"},
        {"compression": None},
        {"serializer": json},
        {"events": 1},
    ],
)
def test_invalid_queue_options_are_rejected(wrong):
    with pytest.raises(GlideMQValidationError):
        QueueOptions(**wrong)
