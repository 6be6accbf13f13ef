-- Read a job's record.

-- Return a value, or nil if it is absent or ''.
G.given = function(text)
  if text and text ~= '' then return text end
  return nil
end

-- string.match of a value that may be no text.
G.match = function(text, pattern) return string.match(type(text) == 'string' and text or '', pattern) end

-- Return the table in a JSON text; an empty one for anything else.
G.json = function(text)
  local ok, value = pcall(cjson.decode, text or '')
  return ok and type(value) == 'table' and value or {}
end

-- The same for packed bytes.
G.unpacked = function(bytes)
  local ok, value = pcall(cmsgpack.unpack, bytes or '')
  return ok and type(value) == 'table' and value or {}
end

-- Return named fields of a hash; absent ones are nil.
G.pick = function(key, ...)
  local names, h = { ... }, {}
  local values = redis.call('HMGET', key, ...)
  for i = 1, #names do
    if values[i] then h[names[i]] = values[i] end
  end
  return h
end

-- Return those of some fields that a hash has, and their values, as one list.
G.stored = function(key, names)
  local list, values = {}, redis.call('HMGET', key, unpack(names))
  for i = 1, #names do
    if values[i] then G.append(list, names[i], values[i]) end
  end
  return list
end

G.exists = function(q, id) return redis.call('EXISTS', q.J .. id) == 1 end

-- Return the state of a job; nil if there is none, or a key of a foreign type.
G.state_of = function(q, id)
  local state = G.pcall('HGET', q.J .. id, 'state')
  return type(state) == 'string' and state or nil
end

-- Write fields of a job's record.
G.set = function(q, id, ...) redis.call('HSET', q.J .. id, ...) end

-- Replace the data of a job. own_keys: a JSON array of the names in it that are no arguments of its task, false = unknown.
G.set_data = function(key, data, own_keys)
  redis.call('HSET', key, 'data', data)
  if own_keys then redis.call('HSET', key, 'ownKeys', own_keys) end
end

-- Return the fields that routines moving a job need.
G.job_of = function(q, id)
  return G.pick(q.J .. id, 'state', 'name', 'groupKey', 'orderingSeq', 'slot', 'eid', 'lifo', 'priority', 'opts',
    'processedOn', 'lastActive', 'expireAt', 'revoked', 'cost', 'timestamp', 'src', 'suspectLimit',
    'fence', 'lease', 'rank', 'rankedAs', 'fairKey')
end

-- Return whether a state is among those of an argument: names separated by spaces; nil or '' = all states.
G.is_among = function(states, state)
  return not G.given(states) or string.find(' ' .. states .. ' ', ' ' .. state .. ' ', 1, true) ~= nil
end

G.TERMINAL = { completed = true, failed = true }
-- States that a leftover member of the scheduled set must not change.
G.NOT_WAITING = { active = true, completed = true, failed = true }
G.NOT_STARTED = { waiting = true, prioritized = true, delayed = true, ['group-waiting'] = true }

-- Return whether the ttl of a job is over. One that was added while the clock was ahead (of Node's clocks: by more than
-- they may differ) has waited since the step back, `clockStep` of P:meta (functions/_clock.lua), at least.
local AHEAD_MS = 10000

G.is_expired = function(q, expires, added, now)
  local at = tonumber(expires)
  if not at or at <= 0 then return false end
  added = tonumber(added)
  if now > at or not added or added <= now + AHEAD_MS then return now > at end
  local step, seen = G.match(redis.call('HGET', q.meta, 'clockStep'), '^(%d+)|(%d+)$')
  return step ~= nil and added <= tonumber(seen) + AHEAD_MS and now - tonumber(step) > at - added
end
