"""The reading layer of everything that people look at: the command `glidemq`, and pages that show queues.

`operating.Operator` reads one server in short, bounded calls and returns the values of `snapshots`. Changes are values
too, the classes of `actions`: each can be counted before it is performed, so a person confirms what will happen.
`stored_changes` holds the audit stream, and the progress of those of many jobs.
`access.Access` limits both. `doctor.examine` looks for problems of a server and its queues.

The modules are attributes that are imported on first use, so a command line that prints its help imports none.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use

if TYPE_CHECKING:
    from glidemq_py._operate import access, action, actions, doctor, filters, job_actions, lists, operating, snapshots

__all__ = ["access", "action", "actions", "doctor", "filters", "job_actions", "lists", "operating", "snapshots"]

__getattr__, __dir__, _ = import_on_first_use(__name__, {}, tuple(__all__))
