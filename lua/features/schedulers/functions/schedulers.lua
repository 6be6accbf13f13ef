-- schedulers_read, schedulers_put: read and change schedulers.
-- A scheduler is an entry of JSON text under its name: in `schedulers`, where peers look (home 0), or in
-- `schedulers-own` (home 1) if it has settings that a peer's tick would not understand or would apply differently. A
-- caller replaces an entry only by naming its current text, so of concurrent callers one succeeds.
-- schedulers_read: KEYS 1 meta   ARGV 1 packed {name} -> packed {now, {{name, home, text}}, ''}, empty if there is none
--                 or packed {false, cursor, count} -> packed {now, rows, cursor}; cursor '' at first and at the end
-- schedulers_put:  KEYS 1 meta   ARGV 1 packed {name, home, expected, text, due, overlap, event, workers}
--                  -> 'ok' | 'busy' | 'changed'
--   expected: the current text, '' = none   text: '' = delete the entry   due: its score in the index `schedulers-due`
--   overlap: true = it adds no job while an earlier one is unfinished   event: name of an event to write, or false
--   workers: true = it adds no job while no worker is registered
--   'busy': a peer's tick is running and would overwrite the change
-- Bound: `count` entries.

local M = G.schedulers
local OVERLAP_FEATURE, WORKERS_FEATURE = 'schedule-overlap:0.2.0', 'schedule-workers:0.2.0'

-- Return text and home; of two entries with one name the peer's has precedence, since it is newer.
M.find = function(q, name)
  local text = redis.call('HGET', q.schedulers, name)
  if text then return text, 0 end
  return redis.call('HGET', q.schedulers_own, name), 1
end

M.is_ticking = function(q) return redis.call('EXISTS', q.P .. 'schedulers:lock:__tick__') == 1 end

M.write = function(q, name, home, text, due)
  redis.call('HSET', home == 0 and q.schedulers or q.schedulers_own, name, text)
  redis.call('HDEL', home == 0 and q.schedulers_own or q.schedulers, name)
  redis.call('ZADD', q.schedulers_due, G.int(due), name)
  redis.call('HDEL', q.schedulers_ended, name)
end

M.delete = function(q, name)
  redis.call('HDEL', q.schedulers, name)
  redis.call('HDEL', q.schedulers_own, name)
  redis.call('ZREM', q.schedulers_due, name)
  redis.call('HDEL', q.schedulers_ended, name)
end

local HOMES = { 'p', 'o' }


-- Call each(name, home, text, is_twice) for a page of the two hashes, one after the other. is_twice: the peer's entry with
-- that name has precedence. Return the next cursor.
M.each = function(q, cursor, count, each)
  local home = string.sub(cursor, 1, 1) == 'o' and 1 or 0
  local key = home == 0 and q.schedulers or q.schedulers_own
  local found, after = G.scan('HSCAN', key, string.sub(cursor, 2), count)
  for i = 1, #found, 2 do
    each(found[i], home, found[i + 1], home == 1 and redis.call('HEXISTS', q.schedulers, found[i]) == 1)
  end
  if after ~= '' then return HOMES[home + 1] .. after end
  return home == 0 and 'o0' or ''
end

G.export('schedulers_read', { 'no-writes' }, function(q, r)
  local now = G.now(q)
  if not r.name then
    local rows = {}
    local cursor = M.each(q, r.cursor, r.count, function(name, home, text, is_twice)
      if not is_twice then rows[#rows + 1] = G.new.scheduler({ name = name, home = home, text = text }) end
    end)
    return { now = now, rows = rows, cursor = cursor }
  end
  local text, home = M.find(q, r.name)
  local rows = text and { G.new.scheduler({ name = r.name, home = home, text = text }) } or {}
  return { now = now, rows = rows, cursor = '' }
end)

G.export('schedulers_put', { 'allow-oom' }, function(q, r)
  local name, text = r.name, r.text
  if M.is_ticking(q) then return 'busy' end
  if (M.find(q, name) or '') ~= r.expected then return 'changed' end
  if text == '' then
    M.delete(q, name)
  else
    if r.overlap then G.use_feature(q, OVERLAP_FEATURE) end
    if r.workers then G.use_feature(q, WORKERS_FEATURE) end
    M.write(q, name, r.home, text, r.due)
  end
  -- A worker may be waiting for a due time that has changed.
  G.schedulers_changed(q)
  G.wake(q, 1)
  if r.event then G.emit(q.events, r.event, '0', 'scheduler', name) end
  return 'ok'
end)
