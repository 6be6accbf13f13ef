-- Place jobs by rank, -1,000,000 to 1,000,000, higher first (docs/design/ready-sources.md). A priority from 1 to 2047 is
-- the rank 2048 - priority, and such jobs are stored as priorities; rank 0 is the stream or the LIFO list. The others are
-- in sorted sets of ours, `ranked-above` (ranks above 2047) and `ranked-below` (below 0): score -rank, member
-- `<order>:<id>`, so that members of a rank are sorted by their order. While delayed they are in `delayed-own`, which no
-- peer promotes. LIFO jobs with a rank from 1 to 2047 are in `scheduled` when they are ready, and delayed like the others.
-- Fields of the record: `rank`, and `rankedAs`, the order of its last place.

local R = G.ranks

R.FEATURE = 'ranks:0.2.0'
local MOST, LAST_PRIORITY = 1000000, G.PRIORITY_MAX - 1
-- Below every time of this century in milliseconds: the time in the score of a LIFO job, which is always due.
local LIFO_FROM = 1099511627776
local ORDERS = 9007199254740991

-- Return the rank in a record's field; nil if the job is placed without this feature.
R.of = function(text)
  local rank = text and tonumber(text)
  if not rank or rank ~= math.floor(rank) or rank < -MOST or rank > MOST or rank == 0 then return nil end
  return rank
end

-- Return whether jobs of the queue may have a rank. settings: see G.settings.
R.are_used = function(settings) return G.uses_feature(settings, R.FEATURE) end

local function is_priority(rank) return rank >= 1 and rank <= LAST_PRIORITY end

local function set_of(q, rank) return rank > 0 and q.ranked_above or q.ranked_below end

-- Return the job of a member of the two sets; nil for a member of a foreign form.
R.id_of = function(member) return string.match(member, '^%d+:(.*)$') end

-- Return the member of a job in its set.
R.member_of = function(h, id) return (h.rankedAs or '') .. ':' .. id end

local function next_order(q, lifo)
  local n = G.bump(q.meta, 'rankClock')
  return n, string.format(lifo and '0%016.0f' or '1%016.0f', lifo and ORDERS - n or n)
end

-- Put a job that is ready into the set of its rank. Return its state.
R.place = function(q, id, rank, lifo)
  G.use_feature(q, R.FEATURE)
  local n, order = next_order(q, lifo)
  if is_priority(rank) then
    redis.call('ZADD', q.scheduled, G.scheduled_score(LAST_PRIORITY + 1 - rank, math.max(0, LIFO_FROM - n)), id)
  else
    redis.call('ZADD', set_of(q, rank), G.int(-rank), order .. ':' .. id)
    G.set(q, id, 'rankedAs', order)
  end
  G.wake(q, 1)
  return 'prioritized'
end

-- Delay a job until `due`. Return its state.
R.delay = function(q, id, due)
  G.use_feature(q, R.FEATURE)
  G.add_delayed(q, q.delayed_own, id, due)
  return 'delayed'
end

-- Remove a job that has not started from the sets of this feature. h: rank, rankedAs.
R.leave = function(q, id, h)
  local rank = R.of(h.rank)
  if not rank then return end
  redis.call('ZREM', q.delayed_own, id)
  if h.rankedAs then redis.call('ZREM', set_of(q, rank), R.member_of(h, id)) end
end

-- The same, and from the scheduled set.
G.leave_scheduled = function(q, id, h)
  G.unschedule(q, id)
  R.leave(q, id, h or G.pick(q.J .. id, 'rank', 'rankedAs'))
end

-- Return the key and member of a job that is prioritized or delayed; the key is nil if its place is `scheduled`.
R.place_of = function(q, id, h)
  local rank = R.of(h.rank)
  if not rank then return nil end
  if h.state == 'delayed' then return q.delayed_own, id end
  if not is_priority(rank) then return set_of(q, rank), R.member_of(h, id) end
  return nil
end

-- ------------------------------------------------------------------ promotion

-- Make due jobs ready, `limit` at most. Return ms until the next one is due (0 = now), or -1.
R.promote_due = function(q, now, limit, quiet)
  return G.promote_members(q, q.delayed_own, now, limit, quiet, G.promote_job)
end

-- Return whether a worker with a free slot would find a ready job.
R.is_ready = function(q) return redis.call('EXISTS', q.ranked_above, q.ranked_below) > 0 end

-- ------------------------------------------------------------------ fetching (sources of core/fetch.lua)

local function source(field)
  return G.source_of(function(q, most)
    local members = redis.call('ZRANGE', q[field], 0, most - 1)
    if #members > 0 then redis.call('ZREM', q[field], unpack(members)) end
    for i = 1, #members do members[i] = R.id_of(members[i]) or members[i] end
    return members
  end)
end
G.sources.ranked_above = source('ranked_above')
G.sources.ranked_below = source('ranked_below')
