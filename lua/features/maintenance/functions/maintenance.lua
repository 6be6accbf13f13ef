-- maintenance_due: hold the maintenance of a queue that may have no worker, and return whether it has work.
-- KEYS 1 meta   ARGV 1 packed {holder, hold ms}   -> packed {held 0|1, busy 0|1, wait, layout}
--   held = 0: another holder maintains the queue; nothing else was read but the layout
--   busy: the queue has active, leased, suspended or parked jobs, parents that wait, entries for other queues, unfinished
--   flows or staged writes, or failed jobs and a failure policy   wait: ms until the next scheduler is due, -1 = there is none
--   layout: number of the layout of its partitions, 0 = it has none
-- Bound: constant.

local SCORED = G.rows.scored
local STREAM_GROUP = G.rows.stream_group
local FILLED = {
  ZCARD = { 'leases', 'suspended', 'suspects', 'list_popped', 'waiting_children', 'ratelimited', 'writes' },
  HLEN = { 'remote_parents' }, XLEN = { 'outbox' }, LLEN = { 'parents_left' },
}

local function is_busy(q)
  local group = G.stream_group(q, G.GROUP)
  if group and group[STREAM_GROUP.pending] > 0 then return true end
  if G.count_of(redis.call('GET', q.list_active)) > 0 or redis.call('HLEN', q.P .. 'flows') > 0 then return true end
  if G.failures.has_work(q) then return true end
  for command, keys in pairs(FILLED) do
    for _, key in ipairs(keys) do
      if redis.call(command, q[key]) > 0 then return true end
    end
  end
  return false
end

local function until_next_scheduler(q, now)
  local first = redis.call('ZRANGE', q.schedulers_due, 0, 0, 'WITHSCORES')
  if first[SCORED.score] then return math.max(0, G.num(first[SCORED.score]) - now) end
  -- A Node peer writes schedulers without an index: they are read once, which creates it.
  return redis.call('EXISTS', q.schedulers) == 1 and 0 or -1
end

G.export('maintenance_due', { 'allow-oom' }, function(q, r)
  local key = q.P .. 'lock:maintenance'
  local holder = redis.call('GET', key)
  if holder and holder ~= r.holder then
    return G.replies.maintenance_due({ held = 0, busy = 0, wait = -1, layout = G.moving.number(q) })
  end
  redis.call('SET', key, r.holder, 'PX', G.int(r.hold))
  return G.replies.maintenance_due({
    held = 1, busy = is_busy(q) and 1 or 0, wait = until_next_scheduler(q, G.now(q)),
    layout = G.moving.number(q),
  })
end)
