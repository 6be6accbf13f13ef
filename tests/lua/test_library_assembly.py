"""Assembly of the Lua library: both variants, their names, and the way from an error back to file and line."""

import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient, RespError
from tests.inside import WIRE_VERSION, Variant, assemble, lua_root
from tests.inside import library_source as library
from tests.server.worker_support import StartServer

OWN_FUNCTIONS = frozenset(
    {
        *("add", "counts", "exchange", "heartbeat", "leave", "lock", "update_job", "obliterate", "page", "pause"),
        *("recover_stalled", "reattach", "remove", "renew", "resume", "requeue_job", "unlock", "version", "workers"),
    }
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the Lua sources that a test may change."""
    return Path(shutil.copytree(lua_root(), tmp_path / "lua"))


def test_our_variant():
    ours = assemble()
    assert re.fullmatch(r"glidemq_py_[0-9a-f]{12}", ours.name)
    assert ours.prefix == ours.name + "_"
    assert ours.function("add") == f"{ours.name}_add"
    assert ours.code.startswith(f"#!lua name={ours.name}\n")
    assert ours.functions >= OWN_FUNCTIONS


def test_the_wire_variant():
    wire = assemble(Variant.WIRE)
    assert (wire.name, wire.prefix) == ("glidemq", "glidemq_")
    assert wire.code.startswith("#!lua name=glidemq\n")
    assert f"VERSION = '{WIRE_VERSION}'" in wire.code


def test_both_libraries_contain_the_shared_files():
    files = {
        variant: {str(assemble(variant).locate(n + 1)).partition(":")[0] for n in range(10_000)} for variant in Variant
    }
    shared = {name for name in files[Variant.OWN] if name.startswith("lua/") and "/functions/" not in name}
    assert shared
    assert shared <= files[Variant.WIRE]
    assert not any("/functions/" in name for name in files[Variant.WIRE])
    assert not any(name.startswith("lua/wire_library/") for name in files[Variant.OWN])


def test_the_name_is_of_the_content_alone(root: Path):
    assert assemble(root=root).name == assemble().name
    with (root / "core" / "functions" / "add.lua").open("a") as file:
        file.write("-- one more line\n")
    assemble.cache_clear()
    assert assemble(root=root).name != assemble().name


def test_a_test_rendering_is_a_library_of_its_own():
    assert assemble(settable_clock=True).name != assemble().name
    assert "'clock'" in assemble(settable_clock=True).code
    assert "'clock'" not in assemble().code


@pytest.mark.slow
def test_every_line_knows_where_it_comes_from():
    ours = assemble()
    lines = ours.code.splitlines()
    located = 0
    for number, line in enumerate(lines, start=1):
        place = ours.locate(number)
        if place is None:
            continue
        located += 1
        source = (lua_root() / place.file).read_text(encoding="utf-8").splitlines()
        assert source[place.line - 1] == line
    assert located > 0.9 * len(lines)
    for number in (-1, 0, len(lines) + 1):
        assert ours.locate(number) is None


def test_an_error_that_names_no_line():
    assert assemble().locate_error("ERR Function not found") is None
    assert assemble().locate_error("user_function:999999") is None


def test_the_sources_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    assert lua_root() == Path(library.__file__).resolve().parents[2] / "lua"
    (tmp_path / "_lua").mkdir()
    assert lua_root() == tmp_path / "_lua"


def test_missing_sources_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    monkeypatch.setattr(library, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(FileNotFoundError, match="Lua sources of glidemq_py are missing"):
        lua_root()


# -- on a server -------------------------------------------------------------------------------------------


BROKEN = """-- A file that fails, to be found again.

G.export('break_call', {}, function(keys)
  redis.call('SET', keys[1], 'x')
  return redis.call('LPUSH', keys[1], 'y')
end)

G.export('break_lua', {}, function()
  local nothing
  return nothing.field
end)

-- As core/finish.lua does: what was begun is written before the error goes on, from the line that lets it.
G.export('break_later', {}, function(keys)
  local ok, failure = pcall(function()
    redis.call('LPUSH', keys[1], 'y')
    return redis.call('SADD', keys[1], 'z')
  end)
  redis.call('DEL', keys[1])
  if not ok then error(failure, 0) end
end)
"""


@pytest.fixture
def broken(core_resp: RespClient, root: Path) -> Iterator[library.Library]:
    """A library with functions that fail, loaded."""
    (root / "core" / "functions" / "zz_broken.lua").write_text(BROKEN, encoding="utf-8")
    rendered = assemble(root=root)
    core_resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", rendered.code)
    yield rendered
    core_resp.execute_everywhere("FUNCTION", "DELETE", rendered.name)


@pytest.mark.parametrize(("function", "line"), [("break_call", 5), ("break_lua", 10), ("break_later", 20)])
def test_a_script_error_is_located(
    core_resp: RespClient, broken: library.Library, glidemq_queue_name: str, function: str, line: int
):
    key = f"glide:{{{glidemq_queue_name}}}:x"
    with pytest.raises(RespError) as caught:
        core_resp.execute("FCALL", broken.function(function), 1, key)
    core_resp.execute("DEL", key)
    assert str(broken.locate_error(str(caught.value))) == f"lua/core/functions/zz_broken.lua:{line}"


@pytest.mark.parametrize("name", ["valkey-9.1", "valkey-8.1", "redis"])
def test_both_faces_load_beside_each_other(private_server: StartServer, name: str):
    variants = [assemble(variant) for variant in Variant if assemble(variant).functions]
    with private_server(name).client() as resp:
        for variant in variants:
            assert resp.execute("FUNCTION", "LOAD", variant.code) == variant.name
        for variant in variants:
            (found,) = resp.execute("FUNCTION", "LIST", "LIBRARYNAME", variant.name)
            listed = dict(zip(found[::2], found[1::2], strict=True))["functions"]
            names = {dict(zip(function[::2], function[1::2], strict=True))["name"] for function in listed}
            assert names == {variant.function(name) for name in variant.functions}


def test_the_reference_describes_every_function():
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "functions.md").read_text(encoding="utf-8")
    described = {name for heading in re.findall(r"(?m)^## (.+)$", page) for name in heading.split(", ")}
    assert assemble().functions - described == set()
