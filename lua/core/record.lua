-- Read a job's record.

-- Return a value, or nil if it is absent or ''.
G.given = function(text)
  if text and text ~= '' then return text end
  return nil
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

G.is_expired = function(h, now)
  local at = tonumber(h.expireAt or '')
  return at ~= nil and at > 0 and now > at
end
