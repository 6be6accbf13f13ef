-- Fetch ready jobs from the sources, in the order of G.sources. A source activates up to `free` jobs and returns
-- whether it is empty. Every source bounds its work: each call rejects at most REFUSALS_MAX jobs per source.

local REFUSALS_MAX = 100
-- A reply exceeds this size by one job at most: data of many MiB would block the server and the worker.
local REPLY_BYTES = 4194304
-- Parked jobs that one call pushes to the stream.
local KICKS_MAX = 1000
-- Entries read at a time, so that few are fetched but not activated when the reply is full.
local STREAM_PAGE = 16

-- All priorities, and one read that finds nothing more.
local BANDS_MAX = G.PRIORITY_MAX + 1
-- Priorities read to find out whether a job is due.
local BANDS_PEEKED = 256

-- Read members of the set from score `from`: many of a priority with due jobs, one to find the next such priority.
local function read_band(q, from, limit)
  return redis.call('ZRANGEBYSCORE', q.scheduled, from, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, limit)
end

-- Fetch due members of one priority from `found`. Return how many were read, how many fetched, and the next priority
-- to read if this one has no more due members. budget: how many may be read.
local function fetch_band(q, fetching, found, free, budget)
  local band, met, taken = G.band_of(found[2]), 0, 0
  for i = 1, #found, 2 do
    local band_here, at = G.band_of(found[i + 1])
    if band_here ~= band then return met, taken, band_here end
    if at > fetching.now then
      local wait = at - fetching.now
      if fetching.next_due < 0 or wait < fetching.next_due then fetching.next_due = wait end
      return met, taken, band + 1
    end
    if fetching.bytes >= REPLY_BYTES or taken >= free or met >= budget then return met, taken end
    redis.call('ZREM', q.scheduled, found[i])
    if not fetching.quiet then G.emit(q.events, 'promoted', found[i]) end
    if G.activate(q, fetching, found[i], '') then taken = taken + 1 end
    met = met + 1
  end
  return met, taken
end

-- Fetch due members of the scheduled set that have a priority, most urgent priority first. A priority whose first
-- member is not due is skipped; the earliest of those due times is kept for the worker's timer.
local function due_priorities(q, fetching, free)
  local from, budget, limit = G.int(G.BAND), free + REFUSALS_MAX, free
  for _ = 1, BANDS_MAX + budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
    local found = read_band(q, from, limit)
    if #found == 0 then return true end
    local met, taken, next_band = fetch_band(q, fetching, found, free, budget)
    free, budget = free - taken, budget - met
    if next_band then from = G.int(next_band * G.BAND) end
    limit = met > 0 and free or 1
  end
  return false
end

-- Return whether due_priorities would find a job. True also if there are more priorities than BANDS_PEEKED.
G.priority_is_due = function(q, now)
  local from = G.int(G.BAND)
  for _ = 1, BANDS_PEEKED do
    local band, at = G.band_of(read_band(q, from, 1)[2])
    if not band then return false end
    if at <= now then return true end
    from = G.int((band + 1) * G.BAND)
  end
  return true
end

-- Make the source of a list that is popped at its right end: LIFO jobs, and due priority jobs of Node peers.
local function popped(field)
  return function(q, fetching, free)
    local budget = free + REFUSALS_MAX
    for _ = 1, budget do
      if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
      local limit = math.min(free, STREAM_PAGE)
      local ids = redis.call('RPOP', q[field], limit) or {}
      for i = 1, #ids do
        if G.activate(q, fetching, ids[i], '') then free = free - 1 end
        budget = budget - 1
      end
      if #ids < limit then return true end
    end
    return false
  end
end

local function stream(q, fetching, free)
  local budget = free + REFUSALS_MAX
  for _ = 1, budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
    local limit = math.min(free, STREAM_PAGE)
    local entries = G.read_stream(q, fetching.consumer, limit)
    for i = 1, #entries do
      local id = G.entry_job(entries[i][2])
      if not id then
        G.drop(fetching, nil, entries[i][1], 'a stream entry without a job id')
      elseif G.activate(q, fetching, id, entries[i][1]) then
        free = free - 1
      end
      budget = budget - 1
    end
    if #entries < limit then return true end
  end
  return false
end

-- A job that its handler put behind the others has a score that is not its sequence.
local function has_its_turn(q, g, id)
  local seq = G.count_of(redis.call('HGET', q.J .. id, 'orderingSeq'))
  return seq > 0 and seq <= g.nextSeq
end

-- Return the id and score of the first parked job that may run now; nil if there is none.
local function next_parked(q, fetching, g)
  local M = G.groups
  if M.is_full(g) and not M.holder_waits(q, g) then return nil end
  local head = redis.call('ZRANGE', g.queue, 0, 0, 'WITHSCORES')
  local id, seq = head[1], G.num(head[2])
  if not id or M.limited_until(q, g, fetching.now) then return nil end
  if g.nextSeq > 0 and seq > g.nextSeq then
    M.skip(g)
    if seq > g.nextSeq and not has_its_turn(q, g, id) then return nil end
  end
  return id, seq
end

-- Fetch parked jobs of groups that have free slots again. Such a group is listed by the step of this call that freed
-- the slot. refusals: how many jobs this call may still reject. Return how many were fetched, whether no more can be
-- fetched, and how many were rejected.
local function pull(q, fetching, name, free, refusals)
  local taken, refused = 0, 0
  local g = G.groups.group(q, name)
  for _ = 1, free + refusals do
    if refused >= refusals or taken >= free or fetching.bytes >= REPLY_BYTES then return taken, false, refused end
    local id, seq = next_parked(q, fetching, g)
    if not id then return taken, true, refused end
    fetching.refused_by = nil
    if G.activate(q, fetching, id, '') then
      taken = taken + 1
    elseif fetching.refused_by then
      return taken, true, refused -- parked again until its time comes
    else
      refused = refused + 1
      redis.call('ZREM', g.queue, id)
      if redis.call('EXISTS', q.J .. id) == 0 then G.groups.mark_skip(g, seq) end
    end
  end
  return taken, false, refused
end

-- Most groups with free slots have no parked jobs: check many of them with one command.
local GROUPS_PAGE = 25

local function drop_empty_groups(q, fetching)
  local all, left, base = fetching.groups, {}, q.P .. 'groupq:'
  for from = 1, #all, GROUPS_PAGE do
    local to, keys = math.min(from + GROUPS_PAGE - 1, #all), {}
    for i = from, to do keys[#keys + 1] = base .. all[i] end
    local some = redis.call('EXISTS', unpack(keys)) > 0
    for i = from, to do
      if some then
        left[#left + 1] = all[i]
      else
        fetching.group_listed[all[i]] = nil
      end
    end
  end
  fetching.groups = left
  return left
end

local function ready_groups(q, fetching, free)
  if #fetching.groups == 0 then return true end
  local groups = drop_empty_groups(q, fetching)
  local refusals = REFUSALS_MAX
  fetching.pulling = true
  for _ = 1, #groups do
    if free <= 0 then break end
    local name = groups[1]
    local taken, empty, refused = pull(q, fetching, name, free, refusals)
    free, refusals = free - taken, refusals - refused
    if not empty then break end
    table.remove(groups, 1)
    fetching.group_listed[name] = nil
  end
  fetching.pulling = false
  return #groups == 0
end

-- Push parked jobs that this call could not fetch to the stream, for other workers. A group that exceeds the limit of
-- this call is listed as a group whose rate limit has ended.
G.kick_groups = function(q, fetching)
  local M, room = G.groups, KICKS_MAX
  for _, name in ipairs(drop_empty_groups(q, fetching)) do
    local g = M.group(q, name)
    if room > 0 then room = room - M.kick(q, g, fetching.now, room) else M.limit_until(q, g, 1, 'NX') end
  end
  fetching.groups, fetching.group_listed = {}, {}
end

G.sources = { popped('priority'), due_priorities, popped('lifo'), ready_groups, stream, ready_groups }
G.stream_sources = { ready_groups, stream, ready_groups }
