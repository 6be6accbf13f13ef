-- change_rank: change the rank of a waiting, prioritized or delayed job.
-- KEYS 1 meta   ARGV 1 id, 2 rank (0 = that of a plain or LIFO job), 3 '1' = also make it a LIFO job, which runs before
-- the others of its rank
-- -> as change_priority | 'keyed' (the job has a fair key, which knows priorities only) | 'ordered' (it has an ordering
-- group, which has no LIFO jobs)
-- Bound: core/find_waiting.lua.
-- count_ranks: count the ready jobs per rank, the highest rank first.
-- KEYS 1 meta   ARGV 1 cursor ('' at first)   -> packed {cursor ('' = the end), counts}; counts: rank and jobs by turns
-- Rank 0 has the jobs of the stream, the LIFO list and the suspects. A Node peer's promoted priority jobs are not
-- counted. Bound: RANKS_A_CALL ranks.
local R, RESCHEDULING = G.ranks, G.rescheduling
local SCORED = G.rows.scored
local RANKS_A_CALL = 250
local LAST_PRIORITY = G.PRIORITY_MAX - 1

-- Return the reason why the job cannot be moved, its due time if it is delayed, and its place if it is waiting.
local function find(q, id, h)
  if h.state == 'waiting' then
    local place = G.waiting_place(q, id, h)
    return not place and 'lost' or place.held and 'held' or nil, nil, place
  end
  local key, member = R.place_of(q, id, h)
  local score = redis.call('ZSCORE', key or q.scheduled, member or id)
  if not score then return 'lost' end
  if h.state == 'prioritized' then return nil end
  local _, due = G.band_of(score)
  return nil, due
end

-- Move the job to a priority, or to a rank that no priority has; with `to_lifo`, to the place of a LIFO job. The new
-- place is written first, the old one removed last; both may be the same member of one set.
R.move = function(q, id, h, now, priority, rank, to_lifo)
  local problem, due, place = find(q, id, h)
  if problem then return problem end
  local old_key, old_member = R.place_of(q, id, h)
  local key = q.J .. id
  h.priority, h.rank, h.fairKey = priority, rank, nil
  if to_lifo then
    h.lifo = '1'
    redis.call('HSET', key, 'lifo', '1')
  end
  if rank then
    redis.call('HSET', key, 'rank', G.int(rank), 'priority', G.int(priority))
  else
    redis.call('HSET', key, 'priority', G.int(priority))
    redis.call('HDEL', key, 'rank')
  end
  local state = G.put(q, id, now, h, due)
  if place then
    G.leave_waiting(q, id, place)
    return 'ok'
  end
  local new = G.pick(key, 'state', 'rank', 'rankedAs')
  local new_key, new_member = R.place_of(q, id, new)
  if not new_key and state ~= 'waiting' then new_key, new_member = q.scheduled, id end
  old_key, old_member = old_key or q.scheduled, old_member or id
  if old_key ~= new_key or old_member ~= new_member then redis.call('ZREM', old_key, old_member) end
  return 'ok'
end

local MOVABLE = { waiting = true, prioritized = true, delayed = true }

local function rank_of(h)
  local rank, priority = R.of(h.rank), G.count_of(h.priority)
  return rank or priority > 0 and LAST_PRIORITY + 1 - priority or 0
end

local function change(q, id, h, rank, to_lifo)
  local is_priority = rank >= 1 and rank <= LAST_PRIORITY
  local own = rank ~= 0 and (not is_priority or to_lifo or h.lifo == '1')
  local priority, now = is_priority and LAST_PRIORITY + 1 - rank or 0, G.now(q)
  local move = (own or to_lifo or R.of(h.rank)) and R.move or RESCHEDULING.priority[h.state]
  return move(q, id, h, now, priority, own and rank or nil, to_lifo)
end

G.export('change_rank', { 'allow-oom' }, G.for_operators(function(q, r)
  local id, rank = r.id, R.of(r.rank) or 0
  local h = G.job_of(q, id)
  if not h.state then return 'gone' end
  if not MOVABLE[h.state] then return h.state end
  local to_lifo = r.lifo == '1' and h.lifo ~= '1'
  if rank_of(h) == rank and not to_lifo then return 'no_op' end
  if h.fairKey and (to_lifo or rank < 0 or rank > LAST_PRIORITY) then return 'keyed' end
  if h.groupKey and to_lifo then return 'ordered' end
  local reply = change(q, id, h, rank, to_lifo)
  if reply == 'ok' then G.emit(q.events, 'rank-changed', id, 'rank', G.int(rank)) end
  return reply
end))

-- ------------------------------------------------------------------ counts

-- Count the next rank of one of our sets below `from`. Return rank and count, or nil.
local function next_of_set(key, from)
  local above = from and '(' .. G.int(-from) or '-inf'
  local score = tonumber(redis.call('ZRANGEBYSCORE', key, above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[SCORED.score])
  if not score then return nil end
  return -score, redis.call('ZCOUNT', key, G.int(score), G.int(score))
end

-- Count the due jobs of the next priority below rank `from`.
local function next_of_priorities(q, now, from)
  local band = G.next_band(q, from and LAST_PRIORITY + 2 - from or 1)
  if not band or band == 0 then return nil end
  local low = band * G.BAND
  local rank = LAST_PRIORITY + 1 - band
  return rank, redis.call('ZCOUNT', q.scheduled, G.int(low), G.int(low + now))
end

local PHASES = {
  function(q, _, from) return next_of_set(q.ranked_above, from) end,
  next_of_priorities,
  function(q, _, from)
    if from then return nil end
    return 0, math.max(0, redis.call('XLEN', q.stream) - G.pending_count(q, G.GROUP)) + redis.call('LLEN', q.lifo)
      + redis.call('ZCARD', q.suspects)
  end,
  function(q, _, from) return next_of_set(q.ranked_below, from) end,
}

G.export('count_ranks', { 'no-writes' }, function(q, r)
  local phase, from = string.match(r.cursor, '^(%d)|(.*)$')
  phase, from = tonumber(phase) or 1, tonumber(from)
  local now, counts = G.now(q), {}
  for _ = 1, RANKS_A_CALL do
    local rank, count = PHASES[phase](q, now, from)
    if rank then
      if count > 0 then G.append(counts, rank, count) end
      from = rank
    else
      phase, from = phase + 1, nil
      if not PHASES[phase] then return { cursor = '', counts = counts } end
    end
  end
  local cursor = G.int(phase) .. '|' .. (from and G.int(from) or '')
  return { cursor = cursor, counts = counts }
end)
