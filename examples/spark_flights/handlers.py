"""The workers of the flights: `python -m glidemq_py.worker examples.spark_flights.handlers:ewr` and its sisters.

A job is a parcel of flights of one carrier from one airport; its result is what became of them.
"""

import os
from typing import Any

from glidemq_py import Job, Worker

LATE = 15
"""Delay in minutes from which a flight is late, by the US Department of Transportation."""


def score(job: Job) -> dict[str, Any]:
    """Return counts of one parcel: flights, late flights, minutes lost and made up in the air."""
    flights: list[dict[str, Any]] = job.data["flights"]
    if not flights:
        raise ValueError("an empty parcel")
    return {
        "flights": len(flights),
        "late": sum(each["arr_delay"] >= LATE for each in flights),
        "minutes_late": sum(max(0, each["arr_delay"]) for each in flights),
        "made_up": sum(each["dep_delay"] - each["arr_delay"] for each in flights),
        "miles": sum(each["distance"] for each in flights),
    }


def _worker(airport: str) -> Worker:
    return Worker(f"flights-{airport}", score, os.environ.get("GLIDEMQ_URL"), concurrency=20)


ewr = _worker("EWR")
jfk = _worker("JFK")
lga = _worker("LGA")
