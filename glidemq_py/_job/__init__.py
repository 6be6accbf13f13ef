"""The job as users hold it, from an add, a read or a handler, and what can be done to it.

Queues and workers make jobs; this room does not know either of them.
"""

from glidemq_py._job.attempt import Attempt
from glidemq_py._job.blocking import BlockingJob
from glidemq_py._job.current import current_job, current_job_id
from glidemq_py._job.job import Job
from glidemq_py._job.link import QueueLink

__all__ = ["Attempt", "BlockingJob", "Job", "QueueLink", "current_job", "current_job_id"]
