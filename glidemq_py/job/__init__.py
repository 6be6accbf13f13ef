"""The job as users hold it, from an add, a read or a handler, and what can be done to it.

Queues and workers make jobs; this room does not know either of them.
"""

from glidemq_py.job.attempt import Attempt
from glidemq_py.job.blocking import BlockingJob
from glidemq_py.job.current import current_job, current_job_id
from glidemq_py.job.job import Job
from glidemq_py.job.link import QueueLink

__all__ = ["Attempt", "BlockingJob", "Job", "QueueLink", "current_job", "current_job_id"]
