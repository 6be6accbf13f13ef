-- Reading a job's record.

-- A value that may be missing; '' stands for absence.
G.given = function(text)
  if text and text ~= '' then return text end
  return nil
end

-- Named fields of a hash; absent ones are nil.
G.pick = function(key, ...)
  local names, h = { ... }, {}
  local values = redis.call('HMGET', key, ...)
  for i = 1, #names do
    if values[i] then h[names[i]] = values[i] end
  end
  return h
end

-- What every routine that moves a job may need to know of it.
G.job_of = function(q, id)
  return G.pick(q.J .. id, 'state', 'name', 'groupKey', 'orderingSeq', 'slot', 'eid', 'lifo', 'priority', 'opts',
    'processedOn', 'lastActive', 'expireAt', 'revoked', 'cost', 'timestamp', 'src', 'suspectLimit')
end

G.TERMINAL = { completed = true, failed = true }

G.is_expired = function(h, now)
  local at = tonumber(h.expireAt or '')
  return at ~= nil and at > 0 and now > at
end
