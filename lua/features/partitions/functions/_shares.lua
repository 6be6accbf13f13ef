-- Shares of the partitions in the concurrency of the whole queue (docs/design/partitions.md, "Shares").
-- Partition 0 stores the limit of the whole queue in the field `concurrencyLimit` of its meta key: limit|until|limit
-- then. Each partition has its share in `globalConcurrency`, which Node peers of partition 0 read too, and the number of
-- the last round of trading in `shareRound`.

local T = G.limit_ttl
local S = G.shares
local FIELD, ROUND = 'concurrencyLimit', 'shareRound'
local STORED = '^(%d+)|(%d+)|(%d+)$'
local MARKERS = 32
local ENDED = 1 -- a time in the past
local NONE, UNLIMITED = 0, -1

S.FIELD, S.ROUND = FIELD, ROUND

-- Return the limit of the whole queue that applies now, {limit, till, before}; nil = it is not stored. 0 = no limit.
S.total = function(q, now)
  local text = redis.call('HGET', q.meta, FIELD)
  local limit, till, before = string.match(text or '', STORED)
  if not limit then return nil end
  local total = { limit = G.count_of(limit), till = G.count_of(till), before = G.count_of(before) }
  if total.till > 0 and now >= total.till then return { limit = total.before, till = 0, before = 0 } end
  return total
end

S.write_total = function(q, total)
  local before = total.till > 0 and total.before or 0
  redis.call('HSET', q.meta, FIELD, table.concat({ G.int(total.limit), G.int(total.till), G.int(before) }, '|'))
end

-- Return the number of the last round of trading that this partition has taken part in.
S.round = function(q) return G.count_of(redis.call('HGET', q.meta, ROUND)) end

local function temporary_limits(text)
  return T.read(text) or { till = 0, concurrency = 0, is_share = false, rate_till = 0, max = 0, duration = 0 }
end

-- Return the share, 0 = none, -1 = no limit, and ms until it ends, -1 = it does not end.
S.share = function(q, now)
  local temporary, concurrency = unpack(redis.call('HMGET', q.meta, 'temporaryLimits', 'globalConcurrency'))
  local t = temporary_limits(temporary)
  if T.has_no_share(t, now) then return NONE, -1 end
  local share = G.count_of(concurrency)
  return share > 0 and share or UNLIMITED, t.till > 0 and math.max(0, t.till - now) or -1
end

-- Write the share, and ms until it ends. No share at all is one that has ended: a Node peer would read 0 as no limit.
S.write_share = function(q, share, ends_in, now)
  local t = temporary_limits(redis.call('HGET', q.meta, 'temporaryLimits'))
  t.is_share = share ~= UNLIMITED or ends_in >= 0
  t.till = share == NONE and ENDED or ends_in >= 0 and now + ends_in or 0
  T.write_concurrency(q, share == NONE and 1 or share)
  T.write(q, t)
end

-- Wake up workers for slots that a larger share has.
S.wake_for = function(q, before, share)
  if share == UNLIMITED then
    G.wake(q, MARKERS)
  elseif before ~= UNLIMITED and share > before then
    G.wake(q, math.min(MARKERS, share - before))
  end
end

-- Return the numbers of active and of ready jobs; none are ready in a paused queue.
S.demand = function(q)
  local paused = redis.call('HGET', q.meta, 'paused') == '1'
  return G.active_count(q), paused and 0 or G.ready_count(q)
end

-- The limit of a queue that gets its first further partitions becomes that of the whole queue.
S.adopt = function(q, now)
  if redis.call('HEXISTS', q.meta, FIELD) == 1 then return end
  local t = temporary_limits(redis.call('HGET', q.meta, 'temporaryLimits'))
  T.expire(q, t, now)
  local limit = G.count_of(redis.call('HGET', q.meta, 'globalConcurrency'))
  S.write_total(q, { limit = limit, till = t.till, before = t.concurrency })
  t.is_share = limit > 0 or t.till > 0
  T.write(q, t)
end
