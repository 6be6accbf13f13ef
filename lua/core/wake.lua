-- Wake up idle workers. An idle worker blocks in the second consumer group of the job stream and the wake stream. A
-- push to the stream wakes one worker; every other push adds a marker here. A marker is only a hint: a wake key of a
-- foreign type must not undo the change that it reports.

local MARKERS_KEPT = 64

-- A call writes at most as many markers as are kept. An add of many jobs writes them at its end, unless processes are
-- registered for channels.
G.wake = function(q, count)
  local adding = rawget(q, 'adding_many')
  if adding and not adding.rings then
    adding.wakes = adding.wakes + count
    return
  end
  local written = rawget(q, 'markers') or 0
  if written == MARKERS_KEPT and rawget(q, 'channels') == false then return end
  for _ = 1, math.min(count, MARKERS_KEPT) do
    if written < MARKERS_KEPT then
      if written == 0 then
        G.pcall('XADD', q.wake, 'MAXLEN', '~', MARKERS_KEPT, '*', 'w', '1')
      else -- the first one has trimmed the stream, or failed
        redis.pcall('XADD', q.wake, '*', 'w', '1')
      end
      written = written + 1
      q.markers = written
    end
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
