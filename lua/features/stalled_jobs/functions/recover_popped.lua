-- List jobs that a peer's worker popped by the wire library and never activated, because it died in between (W15). The
-- wire library remembers them in `list-popped` (score = server time of the pop). They return to the head of their list.
-- A worker that was only slow cannot run one twice: who comes second finds it active.
-- Bound: MOST jobs a call.

local MOST = 200

-- Whether the job was popped before `limit` and nobody has activated it. False for one that is not in the set.
G.is_popped = function(q, id, limit)
  local at = tonumber(redis.call('ZSCORE', q.list_popped, id) or '')
  return at ~= nil and at <= limit
end

-- Takes the job out of the set, and puts it back into its list if it still waits. Returns whether it did.
G.return_popped = function(q, id)
  redis.call('ZREM', q.list_popped, id)
  local values = redis.pcall('HMGET', q.J .. id, 'state', 'name', 'lifo')
  if values[1] == 'active' then return false end
  -- Its worker counted the pop, and would have counted it out again.
  G.list_left(q, id)
  if values[1] ~= 'waiting' or not values[2] then return false end
  redis.call('RPUSH', values[3] == '1' and q.lifo or q.priority, id)
  redis.call('HSET', q.J .. id, 'eid', '')
  G.wake(q, 1)
  return true
end

-- Those that were popped at least `lock` ms ago. Returns the ids of the jobs that are ready again.
G.recover_popped = function(q, now, lock)
  local found = redis.call('ZRANGEBYSCORE', q.list_popped, '-inf', G.int(now - lock), 'LIMIT', 0, MOST)
  local returned = {}
  for _, id in ipairs(found) do
    if G.return_popped(q, id) then returned[#returned + 1] = id end
  end
  return returned
end
