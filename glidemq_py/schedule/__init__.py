"""Firing schedulers: every worker does it, and `Scheduler` in a process that does nothing else.

What a schedule means is options/schedule.py's, how one is stored wire/schedules.py's; that an instant is fired once is
decided on the server (``lua/own/schedules_fire.lua``). Nothing here runs jobs.
"""

from glidemq_py.schedule.duty import ScheduleDuty
from glidemq_py.schedule.scheduler import Scheduler

__all__ = ["ScheduleDuty", "Scheduler"]
