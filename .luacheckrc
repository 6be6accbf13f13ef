-- The servers embed Lua 5.1. The files of lua/ are assembled into one source around one shared table `G`
-- (see glidemq_py/_client/library_source.py), so `G` is the one global that they may write to.
std = "lua51"
globals = { "G" }
read_globals = { "redis", "server", "cjson", "cmsgpack", "bit", "struct" }
max_line_length = 130
max_cyclomatic_complexity = 15
color = false
