-- Recover list jobs that a peer's worker popped through the wire library and never activated, because it died in
-- between. The wire library records them in `list-popped` (score = server time of the pop). They return to the head of
-- their list. If the worker was only slow, the job does not run twice: the second worker finds it active. Bound: MOST
-- jobs per call.

local MOST = 200

-- Return whether the job was popped before `limit`, or more than a day in the future (a time that no pop has), and not
-- activated since. False for a job that is not in the set.
G.is_popped = function(q, id, limit)
  local at = tonumber(redis.call('ZSCORE', q.list_popped, id))
  return at ~= nil and (at <= limit or at > G.now(q) + G.DAY_MS)
end

-- Remove the job from the set, and put it back into its list if it is still waiting. Return whether it was put back.
G.return_popped = function(q, id)
  redis.call('ZREM', q.list_popped, id)
  local state, name, lifo = unpack(G.pcall('HMGET', q.J .. id, 'state', 'name', 'lifo'))
  if state == 'active' then return false end
  -- Its worker counted the pop, and would have removed it from the count.
  G.untrack_list_job(q, id)
  if state ~= 'waiting' or not name then return false end
  redis.call('RPUSH', lifo == '1' and q.lifo or q.priority, id)
  G.set(q, id, 'eid', '')
  G.wake(q, 1)
  return true
end

-- Recover jobs popped at least `lock` ms ago. Return the ids of the jobs that are ready again.
G.recover_popped = function(q, now, lock)
  G.repair_times(q.list_popped, now + G.DAY_MS, now - lock)
  local found = redis.call('ZRANGEBYSCORE', q.list_popped, '-inf', G.int(now - lock), 'LIMIT', 0, MOST)
  local returned = {}
  for _, id in ipairs(found) do
    if G.return_popped(q, id) then returned[#returned + 1] = id end
  end
  return returned
end
