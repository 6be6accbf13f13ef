-- metrics_by_name: return figures, minute by minute.
-- KEYS 1 meta   ARGV 1 packed {last, minutes, name, cursor}   -> packed {last, rows, cursor}
-- last: epoch ms within the last minute, 0 = now   minutes: how many, up to the last one   name: of the jobs, false = all
-- cursor: the minute to continue with (epoch ms); in the request 0 at first, in the reply 0 at the end
-- row: {minute, name, completed, failed, retried, wait, run}   name: false = of all names above the limit
-- Bound: MINUTES minutes, and the names of a minute after ROWS rows.

local STORED = G.rows.stored_name_metrics
local MINUTE, MINUTES, ROWS, NAMES = 60000, 200, 100, 1100

-- Return fields and values, flat.
local function fields_of(key, name)
  if name then
    local value = G.pcall('HGET', key, 'n:' .. name)
    return value and not value.err and { 'n:' .. name, value } or {}
  end
  local size = G.size('HLEN', key)
  if size > NAMES then return (G.scan('HSCAN', key, '', NAMES)) end
  return size > 0 and redis.call('HGETALL', key) or {}
end

G.export('metrics_by_name', { 'no-writes' }, function(q, r)
  local last = r.last > 0 and r.last or G.now(q)
  local end_minute, rows = last - last % MINUTE, {}
  local first = end_minute - (r.minutes - 1) * MINUTE
  local minute = r.cursor > 0 and r.cursor or first
  for _ = 1, MINUTES do
    if minute > end_minute or #rows >= ROWS then break end
    local fields = fields_of(q.P .. 'metrics-by-name:' .. G.int(minute), r.name)
    for i = 1, #fields, 2 do
      local kind, name = string.match(fields[i], '^(%a):(.*)$')
      local figures = (kind == 'n' or fields[i] == 'o') and G.metrics_by_name.read(fields[i + 1])
      if figures then
        rows[#rows + 1] = G.new.name_metrics({
          minute = minute, name = name or false, completed = figures[STORED.completed],
          failed = figures[STORED.failed], retried = figures[STORED.retried], wait = figures[STORED.wait],
          run = figures[STORED.run],
        })
      end
    end
    minute = minute + MINUTE
  end
  return { last = last, rows = rows, cursor = minute > end_minute and 0 or minute }
end)
