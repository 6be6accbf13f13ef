"""For each repaired fault of the original (docs/design/compatibility.md): a test that fails on it.

First those of a single queue, then those of flows, schedulers, suspension, broadcasts, usage and telemetry. If the wire
library shares the repair, tests/wire_library names the fault too.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

FAULTS: dict[str, tuple[str, ...]] = {
    "W1": (
        "contract/test_ordering.py::every_way_to_end_a_job_frees_its_slot",
        "contract/test_bulk_operations.py::revoked_jobs_are_not_run",
        "contract/test_bulk_operations.py::drain_while_a_worker_runs",
        "contract/test_ordering.py::cost_above_the_bucket_capacity_is_rejected",
        "lua/test_own_check.py::missing_sequence_is_repaired",
    ),
    "W2": ("contract/test_worker_pause.py::no_job_is_fetched_after_queue_pause_returned",),
    "W3": ("contract/test_worker_pause.py::a_worker_paused_before_a_backlog_leaves_it",),
    "W4": ("contract/test_ordering.py::handler_can_rate_limit_its_group",),
    "W5": ("contract/test_ordering.py::rate_limiting_a_group_does_not_affect_others",),
    "W6": ("lua/test_state_machine.py::queue_state_machine",),
    "W7": (
        "lua/test_own_finish.py::a_call_repeated_after_a_lost_reply_is_a_success",
        "lua/test_own_finish.py::a_newer_attempt_makes_the_older_one_stale",
    ),
    "W8": ("lua/test_own_original_faults.py::entry_never_activated_frees_no_slot",),
    "W9": ("lua/test_own_original_faults.py::priority_jobs_respect_group_rate_window",),
    "W14": (
        "server/test_worker_closing.py::close_waits_for_active_jobs_and_fetches_no_more",
        "server/test_worker_closing.py::close_releases_jobs_of_a_pending_reply",
    ),
    "W15": ("server/test_faults_workers.py::list_job_of_a_killed_worker_is_recovered",),
    "W16": (
        "contract/test_worker_fetching.py::an_idle_worker_is_woken",
        "server/test_worker_fetching.py::a_job_that_a_peer_put_into_a_list_is_found_by_polling",
    ),
    "W17": ("server/test_batch.py::global_concurrency_bounds_batches_and_strands_nothing",),
    "W18": ("contract/test_bulk_operations.py::revoking_an_active_job_cancels_its_handler",),
    "W19": (
        "contract/test_worker_timeouts.py::an_async_handler_is_cancelled",
        "contract/test_batch.py::timeout_applies_to_one_job_and_keeps_its_reason",
    ),
    "W20": ("contract/test_limits.py::worker_rate_limit_works_without_a_limiter",),
    "W21": ("contract/test_limits.py::rate_limit_error_counts_no_attempt_and_pauses_the_worker",),
    "W22": ("server/test_faults_lost_replies.py::active_jobs_survive_the_loss_of_the_heartbeat_connection",),
    "W23": (
        "lua/test_own_limits.py::permits_are_consumed_only_by_fetched_jobs",
        "contract/test_limits.py::rate_limited_worker_leaves_jobs_to_others",
    ),
    "W24": ("lua/test_own_recovery.py::heartbeat_returns_job_status",),
    "W25": ("lua/test_state_machine.py::queue_state_machine",),
    "W30": (
        "contract/test_worker_pause.py::removing_jobs_that_wait",
        "contract/test_worker_pause.py::removing_an_active_job",
    ),
    "W31": (
        "lua/test_own_plain.py::damaged_record_is_dropped",
        "contract/test_malformed.py::incomplete_job_record_fails",
    ),
    "W35": ("lua/test_own_recovery.py::recovery_reads_one_page_per_call",),
    "W36": ("lua/test_own_exchange.py::a_stale_second_entry_does_not_run_a_job_again",),
    "W37": ("lua/test_own_exchange.py::a_job_left_in_two_places_runs_from_one",),
    "W38": ("lua/test_own_bulk_operations.py::job_read_by_peer_is_held",),
    "W39": ("lua/test_state_machine.py::queue_state_machine",),
    "W53": ("lua/test_own_check.py::high_count_is_ignored_while_peers_run",),
    "W54": ("lua/test_own_recovery.py::stalled_list_jobs_behind_healthy_ones_are_found",),
    "W55": ("lua/test_own_original_faults.py::lock_key_next_to_job_does_not_block_recovery",),
    "W56": ("lua/test_own_bulk_operations.py::revoked_job_deep_in_list_is_rejected_at_fetch",),
    "W57": ("server/test_queue_faults.py::operations_on_many_jobs_use_short_calls",),
    "W58": (
        "contract/test_queue_reading.py::slices_of_every_state",
        "server/test_feature_internals.py::skipped_positions_are_not_read",
        "contract/test_queue_reading.py::workers_of_both_languages",
        "contract/test_queue_administration.py::obliterate_leaves_no_key",
    ),
    "W59": ("lua/test_own_exchange.py::next_due_covers_every_priority",),
    "W60": ("lua/test_own_recovery.py::only_one_holder_recovers",),
    "W63": ("lua/test_own_add.py::only_a_usable_number_moves_the_counter",),
    "W64": ("lua/test_own_add.py::existing_id_is_skipped_by_counter",),
    "W65": ("contract/test_worker_fetching.py::first_come_first_served_within_a_priority",),
    "W66": ("contract/test_ranks.py::order_is_that_of_a_model",),
    "W69": ("contract/test_retention.py::every_form",),
    "W70": ("lua/test_own_limits.py::expired_dedup_entries_are_deleted",),
    "W71": ("lua/test_own_bulk_operations.py::recovery_trims_metrics",),
    "W72": ("lua/test_own_limits.py::tokens_are_counted_when_jobs_end",),
    "W73": (
        "contract/test_queue_administration.py::obliterate_leaves_no_key",
        "contract/test_queue_administration.py::obliterate_rejects_active_jobs",
    ),
    "W77": ("lua/test_own_original_faults.py::the_count_of_active_list_jobs_is_never_negative",),
    "W81": (
        "contract/test_queue_waiting.py::without_events_by_polling",
        "contract/test_queue_waiting.py::events_trimmed_or_deleted_meanwhile",
    ),
    "W82": ("contract/test_queue_events.py::job_added_after_ready_is_received",),
    "W83": ("server/test_queue_faults.py::a_reply_lost_in_the_middle",),
    "W84": (
        "server/test_dead_letters.py::stalled_job_creates_an_entry_after_max_stalled_count",
        "contract/test_dead_letters.py::expired_job_creates_an_entry",
        "server/test_dead_letters.py::crash_during_delivery",
    ),
    "W92": (
        "contract/test_ordering.py::every_way_to_end_a_job_frees_its_slot",
        "lua/test_state_machine.py::queue_state_machine",
        "lua/test_own_check.py::slots_of_a_group",
    ),
    "W93": ("server/test_queue_faults.py::obliterate_a_queue_whose_name_looks_like_a_pattern_of_others",),
    "W94": ("server/test_faults_lost_replies.py::jobs_of_a_lost_reply_are_reattached_immediately",),
    "W96": ("lua/test_own_recovery.py::node_peer_with_unchanged_heartbeat_is_dead",),
    "W100": ("lua/test_own_original_faults.py::first_turn_starts_jobs_parked_before_it",),
    "W101": (
        "lua/test_own_full_server.py::everything_but_adding_works",
        "server/test_faults_server.py::full_server_rejects_jobs_and_is_still_drained",
    ),
}

FAULTS_OF_FEATURES: dict[str, tuple[str, ...]] = {
    "W25": ("contract/test_suspend.py::handler_can_wait_for_two_signals",),
    "W26": (
        "contract/test_suspend.py::job_timeout_applies_to_on_resume",
        "unit/test_recovery_grace.py::continuations_are_bounded",
    ),
    "W32": ("server/test_broadcast.py::stalled_messages_are_redelivered_once_per_subscription",),
    "W33": ("unit/test_broadcast_options.py::unsupported_options_are_rejected",),
    "W34": ("contract/test_broadcast.py::failures_are_separate_per_subscription",),
    "W42": (
        "contract/test_suspend.py::signal_during_the_run_resumes_the_suspension",
        "contract/test_suspend.py::signals_before_the_first_run_avoid_a_suspension",
    ),
    "W43": (
        "contract/test_children.py::parent_gets_every_child_outcome",
        "server/test_children.py::unreported_outcome_of_a_child_is_detected",
    ),
    "W44": ("cluster/test_flows.py::tree_over_several_nodes",),
    "W45": ("contract/test_flows.py::diamond_graph_runs_in_order",),
    "W46": (
        "contract/test_flows.py::tree_runs_children_first",
        "server/flows/test_flows.py::repeated_steps_have_no_effect",
        "server/flows/test_flows_interrupted.py::children_finish_before_the_flow_is_complete",
    ),
    "W47": (
        "contract/test_flows.py::existing_job_ids_are_rejected",
        "server/flows/test_flows_interrupted.py::concurrent_adds_of_the_same_flow",
    ),
    "W48": (
        "contract/test_children.py::waiting_without_children_continues",
        "contract/test_flows.py::flow_of_one_job",
    ),
    "W49": (
        "server/flows/test_flows.py::budget_is_created_before_the_jobs",
        "contract/test_budgets.py::budget_applies_to_batches",
        "contract/test_budgets.py::budget_expires_after_the_root_job_ended",
    ),
    "W50": ("contract/test_flows.py::large_children_values_are_read",),
    "W51": ("server/flows/test_flows.py::a_released_parent_keeps_its_own_options",),
    "W55": ("lua/test_own_usage.py::repeated_report_replaces_earlier_one",),
    "W78": (
        "contract/transcripts/schedulers/schedulers.txt::a repetition continues after every outcome",
        "contract/transcripts/schedulers/schedulers.txt::an update of a waiting repetition does not fire",
        "contract/transcripts/schedulers/schedulers.txt::new times of a repetition do not add a second job",
    ),
    "W79": ("contract/test_schedulers.py::every_option_of_a_template_is_applied",),
    "W80": (
        "unit/test_cron.py::invalid_patterns_are_rejected",
        "unit/test_cron.py::both_day_fields_must_match_unless_either_day_is_set",
    ),
    "W83": ("contract/test_producer.py::partly_failed_bulk_has_a_result_per_position",),
    "W89": ("server/proxy/test_proxy.py::add_and_wait_returns_the_result",),
    "W90": ("server/test_telemetry.py::add_and_process_are_one_trace",),
    "W95": ("contract/test_broadcast.py::max_messages_deletes_all_data_of_old_messages",),
    "W99": ("contract/test_producer.py::producers_with_different_options_are_distinct",),
}


LESSER_FAULTS: dict[str, tuple[str, ...]] = {
    "W10": ("wire_library/test_transcripts.py::the_replies_and_keys_are_those_of_the_transcript",),
    "W11": ("lua/test_own_limits.py::job_without_limits_keeps_group_limits",),
    "W13": ("lua/test_own_original_faults.py::group_continues_after_many_lost_turns",),
    "W27": ("contract/test_worker_failures.py::job_is_retried_until_it_succeeds",),
    "W28": ("unit/test_job_options.py::unsupported_options_are_rejected",),
    "W29": ("contract/test_limits.py::global_concurrency_is_never_exceeded",),
    "W40": ("contract/test_queue_administration.py::a_retried_job_has_all_its_attempts",),
    "W41": ("lua/test_own_bulk_operations.py::revoke_fails_jobs_not_started",),
    "W67": ("contract/test_producer.py::validation_matches_the_queue",),
    "W74": ("lua/test_own_original_faults.py::progress_alone_does_not_fill_the_events",),
    "W75": ("lua/test_own_groups.py::group_unused_for_a_day_is_deleted",),
    "W76": ("contract/test_dead_letters.py::removed_entry_of_a_node_client_leaves_no_keys",),
    "W85": ("unit/test_job_options.py::retention_of_zero_removes_immediately",),
    "W87": ("contract/test_limits.py::compressed_data_stays_compressed",),
    "W88": ("contract/transcripts/reading.txt::data is left out",),
    "W98": ("lua/test_state_machine.py::queue_state_machine",),
}


@pytest.mark.parametrize(
    ("file", "name"),
    sorted(
        {
            tuple(test.split("::"))
            for table in (FAULTS, FAULTS_OF_FEATURES, LESSER_FAULTS)
            for tests in table.values()
            for test in tests
        }
    ),
)
def test_the_test_exists(file: str, name: str):
    assert re.search(
        rf"^((async )?def test_{name}\(|== {name})", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE
    )
