-- Where ready jobs are taken from, in this order. A source activates up to `free` jobs and answers whether it
-- is empty now. Every source bounds its work: what must be refused is refused a bounded number of times a call.

local REFUSALS_MAX = 100
-- A reply is not made larger than this by one job more: data of many mebibytes would hold the server and the worker.
local REPLY_BYTES = 4194304
-- Parked jobs that one call sends to the stream.
local KICKS_MAX = 1000
-- Entries read at a time, so that few are in hand when the reply is full.
local STREAM_PAGE = 16

-- Every priority there is, and a look that finds nothing more.
local BANDS_MAX = G.PRIORITY_MAX + 1
-- Priorities that are looked at to find out whether anything is due.
local BANDS_PEEKED = 256

-- What due_priorities reads at a time: many members of a band that is due, but one to find the next such band.
local function read_band(q, from, asked)
  return redis.call('ZRANGEBYSCORE', q.scheduled, from, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, asked)
end

-- Takes due members of one band out of `found`. Returns how many were met, how many taken, and the band to look at
-- next where this one has no more that are due. budget: how many may be met.
local function take_band(q, fetching, found, free, budget)
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

-- Due members of the scheduled set that have a priority, most urgent band first (W59, W66). Bands whose first
-- member is not due yet are skipped, and the earliest of those due times is kept for the worker's timer.
local function due_priorities(q, fetching, free)
  local from, budget, asked = G.int(G.BAND), free + REFUSALS_MAX, free
  for _ = 1, BANDS_MAX + budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
    local found = read_band(q, from, asked)
    if #found == 0 then return true end
    local met, taken, next_band = take_band(q, fetching, found, free, budget)
    free, budget = free - taken, budget - met
    if next_band then from = G.int(next_band * G.BAND) end
    asked = met > 0 and free or 1
  end
  return false
end

-- Whether due_priorities would find anything. Where there are more priorities than one look takes, it may.
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

-- A list that is popped at its right end: LIFO jobs, and the due priority jobs of Node peers.
local function popped(field)
  return function(q, fetching, free)
    local budget = free + REFUSALS_MAX
    for _ = 1, budget do
      if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
      local asked = math.min(free, STREAM_PAGE)
      local ids = redis.call('RPOP', q[field], asked) or {}
      for i = 1, #ids do
        if G.activate(q, fetching, ids[i], '') then free = free - 1 end
        budget = budget - 1
      end
      if #ids < asked then return true end
    end
    return false
  end
end

local function stream(q, fetching, free)
  local budget = free + REFUSALS_MAX
  for _ = 1, budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= REPLY_BYTES then return false end
    local asked = math.min(free, STREAM_PAGE)
    local entries = G.read_stream(q, fetching.consumer, asked)
    for i = 1, #entries do
      local id = G.entry_job(entries[i][2])
      if not id then
        G.drop(fetching, nil, entries[i][1], 'a stream entry without a job id')
      elseif G.activate(q, fetching, id, entries[i][1]) then
        free = free - 1
      end
      budget = budget - 1
    end
    if #entries < asked then return true end
  end
  return false
end

-- One that was put behind all others by its handler stands there with a score that is not its sequence.
local function has_its_turn(q, g, id)
  local seq = G.count_of(redis.call('HGET', q.J .. id, 'orderingSeq'))
  return seq > 0 and seq <= g.nextSeq
end

-- The first parked job that may go on now: its id and its place; nil where none may.
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

-- Parked jobs of groups that have room again. Such a group is listed by whatever made the room in this call.
-- refusals: how many this call may still refuse.
-- Returns how many were taken, whether that is all there is to take, and how many were refused.
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
      return taken, true, refused -- parked again, until its time comes
    else
      refused = refused + 1
      redis.call('ZREM', g.queue, id)
      if redis.call('EXISTS', q.J .. id) == 0 then G.groups.mark_skip(g, seq) end
    end
  end
  return taken, false, refused
end

-- Most groups that may go on have nobody parked: one look at many of them.
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

-- What had no room in this call goes to the stream, for whoever has. A group that is too much for this call is listed
-- as one whose limit is over.
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
