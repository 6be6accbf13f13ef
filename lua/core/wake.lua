-- Wake up idle workers. An idle worker blocks in the second consumer group of the job stream and the wake stream. A
-- push to the stream wakes one worker; every other push adds a marker here. A marker is only a hint: a wake key of a
-- foreign type must not undo the change that it reports.

local MARKERS_KEPT = 64

G.wake = function(q, count)
  for _ = 1, math.min(count or 1, MARKERS_KEPT) do
    G.pcall('XADD', q.wake, 'MAXLEN', '~', MARKERS_KEPT, '*', 'w', '1')
    if rawget(q, 'channels') ~= false then G.ring(q) end
  end
end

local function move_cursor(key)
  local moved = G.pcall('XGROUP', 'SETID', key, G.WAKE_GROUP, '$')
  if type(moved) == 'table' and moved.err then
    G.pcall('XGROUP', 'CREATE', key, G.WAKE_GROUP, '$', 'MKSTREAM')
  end
end

-- Everything ready has been fetched: only later pushes need to wake a worker.
G.skip_old_wakes = function(q)
  move_cursor(q.stream)
  move_cursor(q.wake)
end
