"""Direct implementations of the commands that the function library uses most, on fakeredis' data.

fakeredis parses every command by a general procedure, which takes several times as long as the command itself. A
function here implements the usual forms of its command and leaves the others to fakeredis, which also writes the error
replies: wrong types, wrong numbers of arguments, unusual options. It raises one of `UNUSUAL` before it changes
anything. Modules: `arguments`, `keyspace`, and one for each type of keys.
"""

from __future__ import annotations

from glidemq_py._client.memory.native.arguments import UNUSUAL, Native, Status, UnusualError, as_argument
from glidemq_py._client.memory.native.hashes import Hashes
from glidemq_py._client.memory.native.keys import Keys
from glidemq_py._client.memory.native.keyspace import Keyspace
from glidemq_py._client.memory.native.lists import Lists
from glidemq_py._client.memory.native.sorted_sets import SortedSets
from glidemq_py._client.memory.native.streams import Streams

__all__ = ["UNUSUAL", "Keyspace", "Native", "NativeCommands", "Status", "UnusualError", "as_argument"]


class NativeCommands:
    """The native commands of one database. ``by_name`` has their functions."""

    def __init__(self, keyspace: Keyspace) -> None:
        streams = Streams(keyspace)
        self.read_group = streams.read_group
        types = (Keys(keyspace), Hashes(keyspace), SortedSets(keyspace), Lists(keyspace), streams)
        self.by_name: dict[bytes, Native] = {name: run for each in types for name, run in each.commands().items()}
