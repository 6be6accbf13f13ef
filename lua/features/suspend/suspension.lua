-- Suspend and resume jobs, and store their signals. `signals:<id>` lists every signal of a job; its field `signals`
-- those delivered to its handler. Signals only in the list came early, and resume the job as soon as it is suspended.
local S = G.suspension

local NEVER = 9999999999999
local SIGNALS_MAX, BYTES_MAX = 1000, 1048576
local REPAIRS_MAX = 20

-- Write the record of a job whose place was written. state: 'delayed' if it is due at the timeout, else 'suspended'.
S.write = function(q, id, state, now, reason, timeout)
  G.note_clock(q, now)
  local key = q.J .. id
  redis.call('HSET', key, 'state', state, 'suspendedAt', G.text(now))
  G.note_reported(q, id, state, now)
  -- Fields of an earlier suspension do not apply to this one.
  redis.call('HDEL', key, 'suspendReason', 'suspendTimeout')
  if G.given(reason) then redis.call('HSET', key, 'suspendReason', reason) end
  if timeout > 0 then redis.call('HSET', key, 'suspendTimeout', G.text(timeout)) end
end

-- timeout: ms, 0 = none. The place is written first, the record second.
S.enter = function(q, id, now, reason, timeout)
  redis.call('ZADD', q.suspended, G.score(timeout > 0 and math.min(now + timeout, NEVER) or NEVER), id)
  S.write(q, id, 'suspended', now, reason, timeout)
end

-- Return the newest signals. Only a peer can have stored more than SIGNALS_MAX.
local function received(q, id)
  local entries = redis.call('LRANGE', q.P .. 'signals:' .. id, -SIGNALS_MAX, -1)
  return entries, '[' .. table.concat(entries, ',') .. ']'
end

-- Return whether the job can hold no more signals, `data` included.
S.is_full = function(q, id, data)
  local entries, text = received(q, id)
  return #entries >= SIGNALS_MAX or #text + #data > BYTES_MAX
end

S.push = function(q, id, name, data, now)
  G.mark_side_keys(q)
  redis.call('RPUSH', q.P .. 'signals:' .. id, '{"name":' .. cjson.encode(name) .. ',"data":' .. cjson.encode(data or '')
    .. ',"receivedAt":' .. G.text(now) .. '}')
end

-- Deliver all signals to the next run of the handler.
S.deliver = function(q, id)
  local _, text = received(q, id)
  G.set(q, id, 'signals', text)
end

-- Return the name of the first signal not delivered to the handler; nil if there is none.
S.undelivered = function(q, id)
  local entries, text = received(q, id)
  local delivered = redis.call('HGET', q.J .. id, 'signals') or '[]'
  if #entries == 0 or delivered == text then return nil end
  return tostring(G.json(entries[#G.json(delivered) + 1] or entries[#entries]).name or '')
end

-- Return whether the job has received more signals of this name than `returned`.
S.has_more = function(q, id, name, returned)
  local entries, found = received(q, id), 0
  for _, entry in ipairs(entries) do
    if G.json(entry).name == name then found = found + 1 end
  end
  return found > returned
end

-- Return the job to its source, with all its signals. h: the fields of G.job_of.
S.resume = function(q, id, now, h, signal, quiet)
  S.deliver(q, id)
  if h.state == 'delayed' then
    G.rescheduling.promote(q, id, h, now)
  else
    G.put(q, id, now, h, nil, true)
    redis.call('ZREM', q.suspended, id)
  end
  if not quiet then G.emit(q.events, 'resumed', id, 'signal', signal) end
end

-- Fail a job that got no signal in time.
S.time_out = function(q, id, now)
  G.set(q, id, 'processedOn', G.text(now))
  G.end_job(q, id, now, 'Suspend timeout exceeded', 'failed')
  redis.call('ZREM', q.suspended, id)
end

S.is_overdue = function(q, id, now)
  local deadline = redis.call('ZSCORE', q.suspended, id)
  return deadline and tonumber(deadline) <= now or false
end

-- A deadline after NEVER is not ours: take it from the record.
local function repair_deadlines(q)
  local found = redis.call('ZRANGEBYSCORE', q.suspended, '(' .. G.score(NEVER), '+inf', 'LIMIT', 0, REPAIRS_MAX)
  for _, id in ipairs(found) do
    local values = G.pcall('HMGET', q.J .. id, 'suspendTimeout', 'suspendedAt')
    local timeout, suspended_at = unpack(values)
    timeout = values.err and 0 or G.duration(timeout)
    local deadline = timeout > 0 and G.clamped_time(suspended_at) + timeout or NEVER
    redis.call('ZADD', q.suspended, G.score(math.min(deadline, NEVER)), id)
  end
end

-- Fail jobs whose timeout has passed, `most` at most. Return their ids, and how many were read.
S.sweep = function(q, now, most)
  local failed = {}
  repair_deadlines(q)
  local due = redis.call('ZRANGEBYSCORE', q.suspended, '-inf', G.score(now), 'LIMIT', 0, most)
  for _, id in ipairs(due) do
    if G.state_of(q, id) == 'suspended' then
      S.time_out(q, id, now)
      failed[#failed + 1] = id
    else
      redis.call('ZREM', q.suspended, id)
    end
  end
  return failed, #due
end

-- Return milliseconds until the next deadline, -1 if there is none.
S.next_due = function(q, now) return G.until_first(q.suspended, now, NEVER) end
