-- counts: count the jobs per state and return whether the queue is paused.
-- KEYS 1 meta   -> {waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children,
-- group waiting, band, below normal}
--   group waiting: jobs parked in their groups; -1 = more groups than one call reads: use count_parked
--   band: 0, or the priority from which count_delayed continues; jobs from there on are counted as prioritized so far
--   below normal: prioritized jobs with a rank below 0
-- count_parked: count parked jobs, one page of the groups per call.
-- KEYS 1 meta   ARGV 1 cursor ('' at first)   -> packed {cursor ('' = the end), jobs parked by group};
-- groups without parked jobs are omitted, a group may be returned twice
-- count_delayed: count delayed jobs with a priority.   KEYS 1 meta   ARGV 1 band   -> {delayed, band or 0}
-- No scan of jobs: every number is a length kept by the server, or two places in a sorted set per priority in use, so
-- the cost does not grow with the queue. Bound: GROUPS_A_CALL groups, 256 priorities.

local GROUPS_A_CALL = 500

local function parked_in(q, group)
  return G.size('ZCARD', q.P .. 'groupq:' .. group)
end

-- Return the number of parked jobs; -1 if there are too many groups for this call.
local function parked(q)
  local groups = redis.call('HLEN', q.ordering)
  if groups == 0 then return 0 end
  if groups > GROUPS_A_CALL then return -1 end
  local n = 0
  for _, group in ipairs(redis.call('HKEYS', q.ordering)) do n = n + parked_in(q, group) end
  return n
end

-- Return the number of waiting jobs, and of those of the stream that are active.
local function waiting(q)
  local call, from_stream = redis.call, G.pending_count(q, G.GROUP)
  local n = math.max(0, call('XLEN', q.stream) - from_stream) + call('LLEN', q.lifo) + call('LLEN', q.priority)
    + call('ZCARD', q.suspects)
  if G.fair.used(q) then n = n + G.fair.waiting(q) end
  return n, from_stream
end

G.counts = function(q)
  local call = redis.call
  local fair, ready, from_stream = G.fair.used(q), waiting(q)
  local from_lists = G.count_of(call('GET', q.list_active))
  local delayed, prioritized, band = G.count_scheduled(q, G.now(q))
  delayed = delayed + call('ZCARD', q.delayed_own)
  local below = call('ZCARD', q.ranked_below)
  prioritized = prioritized + call('ZCARD', q.ranked_above) + below
  if fair then delayed = delayed + call('ZCARD', q.fair_delayed) end
  return {
    ready, from_stream + from_lists, delayed, prioritized,
    call('ZCARD', q.completed), call('ZCARD', q.failed), call('HGET', q.meta, 'paused') == '1' and 1 or 0,
    call('ZCARD', q.suspended),
    call('ZCARD', q.waiting_children),
    parked(q), band, below,
  }
end

G.export('counts', { 'no-writes' }, function(q) return G.counts(q) end)

G.export('count_parked', { 'no-writes' }, function(q, r)
  local groups, after = G.scan('HSCAN', q.ordering, r.cursor, GROUPS_A_CALL)
  local found = {}
  for i = 1, #groups, 2 do
    local n = parked_in(q, groups[i])
    if n > 0 then found[groups[i]] = n end
  end
  return { cursor = after, groups = found }
end)

G.export('count_delayed', { 'no-writes' }, function(q, r)
  local delayed, band = G.count_delayed(q, G.now(q), G.count_of(r.band))
  return { late = delayed, band = band }
end)
