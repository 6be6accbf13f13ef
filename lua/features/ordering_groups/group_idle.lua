-- Delete the record of a group that was not used for a day. The record and its sequence counter are deleted together,
-- so that a new group starts with sequence 1.
local M = G.groups

local PAGE, IDLE_MS = 200, 86400000
local REPAIRS_MAX = 5
local CURSOR_DIGITS = 19
local UNUSABLE = { { from = '(9007199254740991', to = '+inf' }, { from = '-inf', to = '(-9007199254740991' } }

-- Return whether the group is empty, all its sequences are used, and no limit set by an operator
-- (features/limits/functions/limits.lua) would be lost.
local function is_idle(q, g, issued, kept)
  return not kept and g.active == 0 and g.nextSeq == issued + 1 and redis.call('ZCARD', g.queue) == 0
    and not redis.call('ZSCORE', q.ratelimited, g.name)
end

-- Parked jobs with a non-finite score would stay behind or before all others forever: give them their place again.
local function repair_places(q, g)
  for _, range in ipairs(UNUSABLE) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', g.queue, range.from, range.to, 'LIMIT', 0, REPAIRS_MAX)) do
      local h = G.job_of(q, id)
      redis.call('ZREM', g.queue, id)
      if h.state == 'group-waiting' then M.park(q, g, id, h) end
    end
  end
end

-- `idleSince` in the record is `sequences issued|when first seen`: a job added since changes the first number.
local function check_idle(q, name, issued, now)
  local g = M.group(q, name)
  repair_places(q, g)
  M.skip_marked(g)
  local since, kept = unpack(redis.call('HMGET', g.key, 'idleSince', 'limitsKept'))
  if not is_idle(q, g, issued, kept) then return end
  local at = G.match(since, '^' .. G.int(issued) .. '|(%d+)$')
  if not at then
    redis.call('HSET', g.key, 'idleSince', G.int(issued) .. '|' .. G.int(now))
  elseif G.window_is_over(tonumber(at), IDLE_MS, now) then
    redis.call('UNLINK', g.key, q.P .. 'orderdone:pending:' .. name)
    redis.call('HDEL', q.ordering, name)
    redis.call('HDEL', q.group_watch, name)
    M.uncache(q, name)
  end
end

-- Check one page of the groups per call; `meta` stores the cursor.
G.sweep_groups = function(q, now)
  local cursor = G.match(redis.call('HGET', q.meta, 'groupSweep'), '^%d+$') or ''
  local found, following = G.scan('HSCAN', q.ordering, #cursor > CURSOR_DIGITS and '' or cursor, PAGE)
  for i = 1, #found, 2 do check_idle(q, found[i], G.count_of(found[i + 1]), now) end
  if following ~= cursor then redis.call('HSET', q.meta, 'groupSweep', following) end
end

-- A job that returns after its end joins the group behind all present jobs, unless its sequence has had its turn: the
-- sequence may have been skipped, or be from before the group's record was deleted.
M.rejoin = function(q, id, h)
  local key = q.P .. 'group:' .. h.groupKey
  local concurrency = G.count_of(G.match(redis.call('HGET', q.J .. id, 'opts'), '"concurrency":%s*(%d+)'))
  redis.call('HSETNX', key, 'maxConcurrency', G.int(math.max(1, concurrency)))
  redis.call('HSETNX', key, 'nextSeq', '1')
  h.orderingSeq, h.slot = G.int(M.next_seq(q, h.groupKey)), nil
  G.set(q, id, 'orderingSeq', h.orderingSeq)
  redis.call('HDEL', q.J .. id, 'slot')
  if q.defer then M.flush(q) end
  M.uncache(q, h.groupKey)
end

-- Return the group of a job that is about to start, and the job's sequence.
M.turn_of = function(q, id, h)
  local g, seq = M.group(q, h.groupKey), G.count_of(h.orderingSeq)
  if h.slot == '0' and seq > 0 and seq >= g.nextSeq then
    M.rejoin(q, id, h)
    return M.group(q, h.groupKey), G.count_of(h.orderingSeq)
  end
  return g, seq
end
