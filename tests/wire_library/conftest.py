"""Tests of the wire library run on one server; see support.py."""

from tests.lua.conftest import core_resp
from tests.wire_library.support import wire_fixture

__all__ = ["core_resp", "wire_fixture"]
