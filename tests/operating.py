"""What the command line, the dashboard and their tests have in common: the operator, his actions and bulk changes."""

# ruff: noqa: F401

from glidemq_py._operate import job_actions, lists
from glidemq_py._operate.access import READ_ONLY, Access, AccessDeniedError
from glidemq_py._operate.action import ActionResult, ManyAction, Problem, count, perform
from glidemq_py._operate.actions import ACTIONS, CleanQueue, DrainQueue, PauseQueue
from glidemq_py._operate.conversion import Layouts, by_partition, duration_text
from glidemq_py._operate.doctor import ROLES, Diagnosis, configuration, queue_findings
from glidemq_py._operate.filters import HOURS, JobFilter, group_failures, shape_of
from glidemq_py._operate.job_actions import (
    CancelJobs,
    JobsAction,
    PromoteJobs,
    PurgeFailures,
    RemoveJobs,
    ReplayDeadLetters,
    RetryFailures,
    RetryJobs,
)
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.parsing import pairs_of, rate_of, span_of, time_of, value_of
from glidemq_py._operate.snapshots import (
    BatchSnapshot,
    DeadLetter,
    FlowNode,
    GroupSummary,
    JobDetails,
    JobSummary,
    QueueDetails,
    QueueSnapshot,
    ScheduleRun,
    ScheduleSnapshot,
)
from glidemq_py._operate.stored_changes import cancel_bulk, create_bulk, list_bulks, perform_bulk, read_bulk

BroadcastActionError = lists.BroadcastActionError
get_newest_dead_letters = lists.get_newest_dead_letters
iter_dead_letters = lists.iter_dead_letters
