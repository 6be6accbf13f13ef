-- Isolate suspects: jobs of a process that died with several jobs, one of which may have killed it
-- (docs/reference/functions.md, "Suspects"). A suspect waits in the sorted set `suspects`. Its score, and
-- `suspectLimit` in its record, is the limit: how many suspects one worker may run at the same time while this one is
-- among them. Each death halves the limit. A suspect with limit 1 runs alone: `suspect-host` names the worker that is
-- emptied for it, `<consumer>|<until ms>|<mode>`, mode `drain` (finishes its active jobs) or `run` (runs the suspect).
local PENDING_ENTRY = G.rows.pending_entry
local HELD = G.rows.held

G.suspects = {}
local S = G.suspects

local HOST_MS = 60000 -- longest drain of a host, and the longest time a running suspect is isolated
local PAGE = 100
local LOST_MAX = 1000
local LOSSES_KEPT_S = 3600

-- ------------------------------------------------------------------ recovery

local function count_lost(_, q, consumer, listed, lock)
  if consumer == '' then return 1 end
  local host = G.pcall('GET', q.suspect_host)
  if type(host) == 'string' and string.sub(host, 1, #consumer + 1) == consumer .. '|' then
    redis.call('UNLINK', q.suspect_host)
  end
  -- Heartbeats of one worker are less than half a lock apart.
  local pending, lost = G.pcall('XPENDING', q.stream, G.GROUP, '-', '+', LOST_MAX, consumer), listed
  for _, p in ipairs(pending) do
    if p[PENDING_ENTRY.idle] >= lock / 2 then lost = lost + 1 end
  end
  local before = G.pcall('HGET', q.losses, consumer)
  lost = math.max(1, lost, type(before) == 'string' and G.count_of(before) or 0)
  if lost > 1 then
    G.pcall('HSET', q.losses, consumer, G.int(lost))
    G.pcall('EXPIRE', q.losses, LOSSES_KEPT_S)
  end
  return lost
end

-- Return how many jobs `consumer` lost together. listed: those without a stream entry. lock: ms. The number is stored
-- for an hour, as several calls may recover the jobs.
S.lost_together = function(q, run, consumer, ...)
  return G.once(run, 'lost by ' .. consumer, count_lost, q, consumer, ...)
end

-- Make a lost job a suspect, with a smaller limit than before. Return false if the job itself is to blame: it was
-- alone, or the only suspect of its worker.
S.suspect = function(q, id, h, lost)
  local limit = G.count_of(h.suspectLimit)
  if lost <= 1 or limit == 1 then return false end
  limit = math.max(1, math.floor((limit > 0 and math.min(limit, lost) or lost) / 2))
  G.set(q, id, 'suspectLimit', G.int(limit))
  h.suspectLimit = G.int(limit)
  return true
end

-- ------------------------------------------------------------------ the place

-- Return whether a job with this record waits among the suspects when it is ready. Workers of another library do not
-- read that set.
S.belongs = function(q, h) return G.count_of(h.suspectLimit) > 0 and not G.has_peers(q) end

-- Make the suspect ready. A job of an ordering group keeps its slot, so that the next of the group does not start
-- before it.
S.add = function(q, id, h)
  if h.groupKey then
    if G.groups.holds_slot(G.groups.group(q, h.groupKey), h) then G.groups.keep_slot(q, id, h) end
    if h.state == 'group-waiting' then redis.call('ZREM', q.P .. 'groupq:' .. h.groupKey, id) end
  end
  redis.call('ZADD', q.suspects, G.int(G.count_of(h.suspectLimit)), id)
  G.set_state(q, id, 'waiting', '')
  G.wake(q, 1)
end

-- ------------------------------------------------------------------ fetching

-- Return the host, if it is alive: {name, wait = ms for which it stays the host; 0 = it could not be emptied in time}.
local function host_of(q, now)
  local value = G.pcall('GET', q.suspect_host)
  local name, till, mode = G.match(value, '^(.*)|(%d+)|(%l+)$')
  if not name or not G.is_registered(q, name) then return nil end
  local wait = tonumber(till) - now
  if wait > HOST_MS or (wait <= 0 and mode == 'run') then return nil end
  return { name = name, wait = math.max(0, wait) }
end

local function become_host(q, fetching, mode)
  local till = G.int(fetching.now + HOST_MS)
  redis.call('SET', q.suspect_host, fetching.consumer .. '|' .. till .. '|' .. mode, 'PX', 2 * HOST_MS)
end


local function is_empty(q, fetching)
  if not fetching.held or fetching.held[HELD.jobs] > 0 or #fetching.jobs > 0 then return false end
  return #G.pcall('XPENDING', q.stream, G.GROUP, '-', '+', 1, fetching.consumer) == 0
end

local function fetch(q, fetching, id)
  redis.call('ZREM', q.suspects, id)
  fetching.from_suspects = true
  local fetched = G.activate(q, fetching, id, '')
  fetching.from_suspects = false
  return fetched
end

local function become_only_suspect(fetching)
  fetching.held = G.new.held({ jobs = fetching.held[HELD.jobs] + 1, suspects = 1, limit = 1 })
end

-- The host's jobs take too long: the suspect runs beside other jobs, as the only suspect of its worker.
local function fetch_beside_others(q, fetching, id)
  if fetching.held[HELD.suspects] > 0 then return end
  redis.call('UNLINK', q.suspect_host)
  if fetch(q, fetching, id) then become_only_suspect(fetching) end
end

-- Fetch suspects with limit 1. Return true if this worker gets no other jobs now.
local function fetch_alone(q, fetching)
  local host = host_of(q, fetching.now)
  if host and host.wait > 0 then
    if host.name ~= fetching.consumer then return false end
    if not is_empty(q, fetching) then
      G.note_due(fetching, host.wait)
      return true
    end
  end
  if not fetching.held then return false end
  local id = G.first(redis.call('ZRANGEBYSCORE', q.suspects, '-inf', 1, 'LIMIT', 0, 1))
  if not id then
    if host then redis.call('UNLINK', q.suspect_host) end
    return false
  end
  if host and host.wait == 0 then
    fetch_beside_others(q, fetching, id)
    return false
  end
  local empty = is_empty(q, fetching)
  if empty and not fetch(q, fetching, id) then return false end
  become_host(q, fetching, empty and 'run' or 'drain')
  G.note_due(fetching, HOST_MS)
  return true
end

-- Fetch the others, smallest limit first. A suspect without room stops those behind it, or it would never get room.
local function fetch_some(q, fetching, want)
  local held = fetching.held[HELD.suspects]
  local most = fetching.held[HELD.limit] > 0 and fetching.held[HELD.limit] or math.huge
  local found = redis.call('ZRANGEBYSCORE', q.suspects, '(1', '+inf', 'WITHSCORES', 'LIMIT', 0, math.min(want, PAGE))
  for i = 1, #found, 2 do
    most = math.min(most, tonumber(found[i + 1]))
    if held + 1 > most or #fetching.jobs >= want or fetching.bytes >= G.REPLY_BYTES then return end
    if fetch(q, fetching, found[i]) then held = held + 1 end
  end
end

-- A lease of a suspect is the only one of its call, if no worker is the host. Return true if there is one.
local function fetch_leased(q, fetching)
  local host = host_of(q, fetching.now)
  if host and host.wait > 0 then return false end
  local id = G.member_at(q.suspects, 0)
  return id ~= nil and fetch(q, fetching, id)
end

-- fetching.held: {jobs, suspects, smallest limit} of the worker; nil = another of its calls may fetch suspects. Return
-- true if the worker gets no other jobs now. Bound: PAGE jobs.
S.fetch = function(q, fetching, want)
  if redis.call('EXISTS', q.suspects, q.suspect_host) == 0 then return false end
  if fetching.lease then return fetch_leased(q, fetching) end
  if fetch_alone(q, fetching) then return true end
  if fetching.held then fetch_some(q, fetching, want) end
  return false
end
