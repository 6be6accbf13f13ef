"""The `Job` class and its parts. Queues and workers create jobs; this package imports neither of them."""

from glidemq_py._job.attempt import Attempt
from glidemq_py._job.blocking import BlockingJob
from glidemq_py._job.current import current_job, current_job_id
from glidemq_py._job.job import Job
from glidemq_py._job.link import ConnectedQueue, QueueLink

__all__ = ["Attempt", "BlockingJob", "ConnectedQueue", "Job", "QueueLink", "current_job", "current_job_id"]
