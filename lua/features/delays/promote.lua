-- Promote due jobs without a priority (delayed and retrying ones) to the stream or the LIFO list. Due jobs with a
-- priority stay in the set: workers fetch them from there (features/priorities/fetch_priorities.lua).

-- The new place is written first and the old one removed later: a job whose promotion failed half-way is found again.
local function promote_one(q, id, now, quiet)
  local h = G.pcall('HMGET', q.J .. id, 'state', 'name', 'lifo', 'expireAt', 'processedOn', 'timestamp')
  local state, name, lifo, expires, processed_on, added = unpack(h)
  if not state or G.NOT_WAITING[state] then return end
  if G.is_expired(q, expires, added, now) then
    return G.end_job(q, id, now, 'expired', 'expired', processed_on)
  end
  if lifo == '1' then
    redis.call('RPUSH', q.lifo, id)
    G.set(q, id, 'state', 'waiting')
    if processed_on then G.set(q, id, 'readyAt', G.int(now)) end -- a retry
    G.wake(q, 1)
  else
    G.set(q, id, 'state', 'waiting', 'eid', G.push_stream(q, id, name or ''))
  end
  G.note_state(q, id, 'waiting', now)
  if not quiet then G.emit(q.events, 'promoted', id) end
end

-- A broadcast retry (`id||group`) returns to the stream for that group only.
local function promote_broadcast(q, id, group, quiet)
  local name = G.pcall('HGET', q.J .. id, 'name')
  if type(name) ~= 'string' then
    -- the message was trimmed while it waited for its next attempt
    G.emit(q.events, 'trimmed', id, 'subscription', group)
    return
  end
  G.push_for(q, id, name, group)
  G.set(q, id, 'state', 'waiting')
  if not quiet then G.emit(q.events, 'promoted', id) end
end

local function promote_member(q, member, now, quiet)
  local id, group = G.scheduled_job(q, member)
  if group then return promote_broadcast(q, id, group, quiet) end
  promote_one(q, id, now, quiet)
end

-- Call promote(q, member, now, quiet) for at most `limit` due members of a set, and remove them. Return ms until the next
-- one below a score is due (0 = now), or -1.
G.promote_members = function(q, key, now, limit, quiet, promote, below)
  local due = G.due_members(key, now, limit)
  for i = 1, #due, 2 do
    promote(q, due[i], now, quiet)
    redis.call('ZREM', key, due[i])
  end
  if #due == 2 * limit then return 0 end
  return G.until_first(key, now, below)
end

-- Put a due job into the place that its record gives it: at the end of its delay, or of that of a retry.
G.promote_job = function(q, id, now, quiet)
  local ok, h = G.attempt(G.job_of, q, id)
  if not ok or not G.NOT_STARTED[h.state] then return end
  if G.is_expired(q, h.expireAt, h.timestamp, now) then return G.end_job(q, id, now, 'expired', 'expired', h.processedOn) end
  G.put(q, id, now, h, nil, h.processedOn)
  if not quiet then G.emit(q.events, 'promoted', id) end
end

-- Promote at most `limit` members. Return ms until the next job without a priority is due (0 = now), or -1.
G.promote_due = function(q, now, limit, quiet)
  G.repair_scheduled(q, now)
  return G.promote_members(q, q.scheduled, now, limit, quiet, promote_member, G.BAND)
end
