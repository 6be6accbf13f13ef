"""Types of options that are given as dicts, for annotations: ``retry: JobOptionsDict = {"attempts": 3}``."""

from __future__ import annotations

from glidemq_py._core.limits import OrderingDict, RateLimitDict, TokenBucketDict, TokenLimiterDict
from glidemq_py._core.option_dicts_twin import JobOptionsDict, PublishOptionsDict
from glidemq_py._core.option_values import BackoffDict, DeduplicationDict, FallbackDict, KeepJobsDict, ParentDict
from glidemq_py._core.queue_options import DeadLetterOptionsDict, DurabilityDict
from glidemq_py._features.budgets import BudgetDict
from glidemq_py._features.schedulers.options import ScheduleDict
from glidemq_py._features.vectors import VectorFieldDict
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
