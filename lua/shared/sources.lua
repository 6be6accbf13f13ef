-- Where ready jobs are taken from, in this order. A source activates up to `free` jobs and answers whether it
-- is empty now. Every source bounds its work: what must be refused is refused a bounded number of times a call.

local REFUSALS_MAX = 100
-- A reply is not made larger than this by one job more: data of many mebibytes would hold the server and the worker.
local REPLY_BYTES = 4194304
-- Entries read at a time, so that few are in hand when the reply is full.
local STREAM_PAGE = 16

-- Due members of the scheduled set that have a priority, most urgent band first (W59, W66). Bands whose first
-- member is not due yet are skipped, and the earliest of those due times is kept for the worker's timer.
local function due_priorities(q, taking, free)
  local now, from, budget = taking.now, G.int(G.BAND), free + REFUSALS_MAX
  while free > 0 and budget > 0 and taking.bytes < REPLY_BYTES do
    local found = redis.call('ZRANGEBYSCORE', q.scheduled, from, '+inf', 'WITHSCORES', 'LIMIT', 0, free)
    if #found == 0 then return true end
    local band = math.floor(tonumber(found[2]) / G.BAND)
    for i = 1, #found, 2 do
      local score = tonumber(found[i + 1])
      local at = score - band * G.BAND
      if at >= G.BAND then
        from = G.int(math.floor(score / G.BAND) * G.BAND)
        break
      end
      if at > now then
        local wait = at - now
        if taking.next_due < 0 or wait < taking.next_due then taking.next_due = wait end
        from = G.int((band + 1) * G.BAND)
        break
      end
      if taking.bytes >= REPLY_BYTES then return false end
      redis.call('ZREM', q.scheduled, found[i])
      if not taking.quiet then G.emit(q.events, 'promoted', found[i]) end
      if G.activate(q, taking, found[i], '') then free = free - 1 end
      budget = budget - 1
    end
  end
  return false
end

-- Whether due_priorities would find anything.
G.priority_is_due = function(q, now)
  local from = G.int(G.BAND)
  while true do
    local score = tonumber(redis.call('ZRANGEBYSCORE', q.scheduled, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '')
    if not score then return false end
    local band = math.floor(score / G.BAND)
    if score - band * G.BAND <= now then return true end
    from = G.int((band + 1) * G.BAND)
  end
end

-- A list that is popped at its right end: LIFO jobs, and the due priority jobs of Node peers.
local function popped(field)
  return function(q, taking, free)
    local budget = free + REFUSALS_MAX
    while free > 0 and budget > 0 and taking.bytes < REPLY_BYTES do
      local asked = math.min(free, STREAM_PAGE)
      local ids = redis.call('RPOP', q[field], asked) or {}
      for i = 1, #ids do
        if G.activate(q, taking, ids[i], '') then free = free - 1 end
        budget = budget - 1
      end
      if #ids < asked then return true end
    end
    return false
  end
end

local function stream(q, taking, free)
  local budget = free + REFUSALS_MAX
  while free > 0 and budget > 0 and taking.bytes < REPLY_BYTES do
    local asked = math.min(free, STREAM_PAGE)
    local entries = G.read_stream(q, taking.consumer, asked)
    for i = 1, #entries do
      local id = G.entry_job(entries[i][2])
      if not id then
        G.drop(taking, nil, entries[i][1], 'a stream entry without a job id')
      elseif G.activate(q, taking, id, entries[i][1]) then
        free = free - 1
      end
      budget = budget - 1
    end
    if #entries < asked then return true end
  end
  return false
end

-- One that was put behind all others by its handler stands there with a score that is not its sequence.
local function has_had_its_turn(q, g, id)
  local seq = G.count_of(redis.call('HGET', q.J .. id, 'orderingSeq'))
  return seq > 0 and seq < g.nextSeq
end

-- Parked jobs of groups that have room again. Such a group is listed by whatever made the room in this call.
-- Returns how many were taken, and whether that is all there is to take.
local function pull(q, taking, name, free)
  local M, taken = G.groups, 0
  local g = M.group(q, name)
  for _ = 1, free + REFUSALS_MAX do
    if taken >= free or taking.bytes >= REPLY_BYTES then return taken, false end
    if M.is_full(g) and not M.holder_waits(q, g) then return taken, true end
    local head = redis.call('ZRANGE', g.queue, 0, 0, 'WITHSCORES')
    local id, seq = head[1], tonumber(head[2])
    if not id or M.limited_until(q, g, taking.now) then return taken, true end
    if g.nextSeq > 0 and seq > g.nextSeq then
      M.skip(g)
      if seq > g.nextSeq and not has_had_its_turn(q, g, id) then return taken, true end
    end
    taking.refused_by = nil
    if G.activate(q, taking, id, '') then
      taken = taken + 1
    elseif taking.refused_by then
      return taken, true -- parked again, until its time comes
    else
      redis.call('ZREM', g.queue, id)
      if redis.call('EXISTS', q.J .. id) == 0 then M.mark_skip(g, seq) end
    end
  end
  return taken, false
end

-- Most groups that may go on have nobody parked: one look at many of them.
local GROUPS_PAGE = 25

local function drop_empty_groups(q, taking)
  local all, left, base = taking.groups, {}, q.P .. 'groupq:'
  for from = 1, #all, GROUPS_PAGE do
    local to, keys = math.min(from + GROUPS_PAGE - 1, #all), {}
    for i = from, to do keys[#keys + 1] = base .. all[i] end
    local some = redis.call('EXISTS', unpack(keys)) > 0
    for i = from, to do
      if some then
        left[#left + 1] = all[i]
      else
        taking.group_listed[all[i]] = nil
      end
    end
  end
  taking.groups = left
  return left
end

local function ready_groups(q, taking, free)
  if #taking.groups == 0 then return true end
  local groups = drop_empty_groups(q, taking)
  taking.pulling = true
  while #groups > 0 and free > 0 do
    local name = groups[1]
    local taken, empty = pull(q, taking, name, free)
    free = free - taken
    if not empty then break end
    table.remove(groups, 1)
    taking.group_listed[name] = nil
  end
  taking.pulling = false
  return #groups == 0
end

-- What had no room in this call goes to the stream, for whoever has.
G.kick_groups = function(q, taking)
  for _, name in ipairs(drop_empty_groups(q, taking)) do
    G.groups.kick(q, G.groups.group(q, name), taking.now)
  end
  taking.groups, taking.group_listed = {}, {}
end

G.sources = { popped('priority'), due_priorities, popped('lifo'), ready_groups, stream, ready_groups }
G.stream_sources = { ready_groups, stream, ready_groups }
