"""Adding jobs and nothing else, for code that lives shortly or keeps nothing: web requests, cloud functions.

Reading, steering and running belong to `Queue` and `Worker` and do not come in here.
"""

from glidemq_py.producer.pool import ServerlessPool, serverless_pool
from glidemq_py.producer.producer import Producer

__all__ = ["Producer", "ServerlessPool", "serverless_pool"]
