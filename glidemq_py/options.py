"""Types of options that are given as dicts, for annotations: ``retry: JobOptionsDict = {"attempts": 3}``."""

from __future__ import annotations

from glidemq_py._core.job_options import BackoffDict, JobOptionsDict
from glidemq_py._features.broadcast.options import PublishOptionsDict
from glidemq_py._features.budgets.options import BudgetDict
from glidemq_py._features.dead_letters.options import DeadLetterOptionsDict
from glidemq_py._features.deduplication.options import DeduplicationDict
from glidemq_py._features.durability.options import DurabilityDict
from glidemq_py._features.fallbacks import FallbackDict
from glidemq_py._features.flows.parent_option import ParentDict
from glidemq_py._features.limits.options import RateLimitDict, TokenBucketDict, TokenLimiterDict
from glidemq_py._features.ordering_groups import OrderingDict
from glidemq_py._features.retention import KeepJobsDict
from glidemq_py._features.schedulers.options import ScheduleDict
from glidemq_py._features.vectors.options import VectorFieldDict
from glidemq_py._worker.options import BatchDict, FailureLogDict, SandboxDict

__all__ = [
    "BackoffDict",
    "BatchDict",
    "BudgetDict",
    "DeadLetterOptionsDict",
    "DeduplicationDict",
    "DurabilityDict",
    "FailureLogDict",
    "FallbackDict",
    "JobOptionsDict",
    "KeepJobsDict",
    "OrderingDict",
    "ParentDict",
    "PublishOptionsDict",
    "RateLimitDict",
    "SandboxDict",
    "ScheduleDict",
    "TokenBucketDict",
    "TokenLimiterDict",
    "VectorFieldDict",
]
