-- Waking idle workers (functions.md, "Waking"). An idle worker blocks in the second consumer group over the
-- job stream and the wake stream; a stream push wakes one by itself, every other push leaves a marker here.
-- A marker is a hint: a wake key of a foreign type must not undo the change that it tells of.

local MARKERS_KEPT = 64

G.wake = function(q, count)
  for _ = 1, math.min(count or 1, MARKERS_KEPT) do
    redis.pcall('XADD', q.wake, 'MAXLEN', '~', MARKERS_KEPT, '*', 'w', '1')
  end
end

local function move_cursor(key)
  local moved = redis.pcall('XGROUP', 'SETID', key, G.WAKE_GROUP, '$')
  if type(moved) == 'table' and moved.err then
    redis.pcall('XGROUP', 'CREATE', key, G.WAKE_GROUP, '$', 'MKSTREAM')
  end
end

-- Everything that is ready has been taken: only what is pushed from now on shall wake somebody.
G.forget_old_wakes = function(q)
  move_cursor(q.stream)
  move_cursor(q.wake)
end
