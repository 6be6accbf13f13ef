"""Schedulers: cron patterns, intervals, and repeating after completion."""
