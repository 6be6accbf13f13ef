-- maintenance_due: hold the maintenance of a queue that may have no worker, and return whether it has work.
-- KEYS 1 meta   ARGV 1 packed {holder, hold ms, owed}   -> packed {held 0|1, busy 0|1, wait, layout}
--   held = 0: another holder maintains the queue; nothing else was read but the layout, and wait: ms until a scheduler has
--   been due for a second, as if the holder had died
--   owed: ends of keys   busy: one of them exists, or the queue has pending entries, or failed jobs and a failure policy
--   wait: ms until the next scheduler is due, -1 = there is none
--   layout: number of the layout of its partitions, 0 = it has none
-- Bound: constant.

local SCORED = G.rows.scored
local STREAM_GROUP = G.rows.stream_group

local function is_busy(q, owed)
  local group, keys = G.stream_group(q, G.GROUP), {}
  for i, name in ipairs(owed) do keys[i] = q.P .. name end
  return group and group[STREAM_GROUP.pending] > 0 or redis.call('EXISTS', unpack(keys)) > 0 or G.failures.has_work(q)
end

local LATE_MS = 1000

local function until_next_scheduler(q, now, held)
  local found, at = redis.call('ZRANGE', q.schedulers_due, 0, 1, 'WITHSCORES'), SCORED.score
  -- The holder also reads the hashes in time, for which there is a member without a name.
  if not held and found[SCORED.member] == '' then at = 2 + SCORED.score end
  if found[at] then return math.max(0, G.num(found[at]) - now) end
  if not held and found[SCORED.member] then return -1 end
  -- A Node peer writes schedulers without an index: they are read once, which creates it.
  return redis.call('EXISTS', q.schedulers) == 1 and 0 or -1
end

G.export('maintenance_due', { 'allow-oom' }, function(q, r)
  local key = q.lock_maintenance
  local holder = redis.call('GET', key)
  if holder and holder ~= r.holder and redis.call('PTTL', key) <= r.hold then
    local wait = until_next_scheduler(q, G.now(q) - LATE_MS, false)
    return { held = 0, busy = 0, wait = wait, layout = G.layout.number(q) }
  end
  redis.call('SET', key, r.holder, 'PX', G.int(r.hold))
  return {
    held = 1, busy = is_busy(q, r.owed) and 1 or 0, wait = until_next_scheduler(q, G.now(q), true),
    layout = G.layout.number(q),
  }
end)
