"""Types of options that are given as dicts, for annotations: ``retry: JobOptionsDict = {"attempts": 3}``."""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from glidemq_py.options_twin import *  # noqa: F403
    from glidemq_py.options_twin import __all__ as __all__
else:
    __getattr__, __dir__, __all__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._core.limits": "OrderingDict, RateLimitDict, TokenBucketDict, TokenLimiterDict",
            "glidemq_py._core.option_dicts_twin": "JobOptionsDict, PublishOptionsDict",
            "glidemq_py._core.option_values": (
                "BackoffDict, DeduplicationDict, FallbackDict, KeepJobsDict, ParentDict"
            ),
            "glidemq_py._core.queue_options": "DeadLetterOptionsDict, DurabilityDict",
            "glidemq_py._features.budgets": "BudgetDict",
            "glidemq_py._features.failures": "FailureCriteriaDict",
            "glidemq_py._features.schedulers.options": "ScheduleDict",
            "glidemq_py._features.vectors": "VectorFieldDict",
            "glidemq_py._worker.options": "BatchDict, FailureLogDict, SandboxDict",
        },
    )
