-- workers, invalidate, leave: list and remove the workers of this queue.
-- workers: KEYS 1 meta   -> flat {consumer, registration JSON, ...} of the workers whose registration has not expired
-- invalidate:  KEYS 1 meta   ARGV 1 token   -> 1; exchanges with this token that have not run yet will fetch nothing
-- leave:   KEYS 1 meta   ARGV 1 consumer, 2 its group: `workers`, or a subscription
--   -> 1 if its consumer was deleted, 0 if entries are still pending for it
-- The set `workers` holds our registrations; a Node peer's registration is found by the consumers of the group.
-- pass_wake_up: wake another worker, because the one that was woken up cannot fetch.
-- KEYS 1 meta   -> 1
-- Bound: one wake-up.

local STREAM_CONSUMER = G.rows.stream_consumer
local INVALIDATED_MS = 3600000 -- longer than any call waits in a connection
local WORKERS_MAX = 5000 -- the registrations renewed last

local function registered(q, names)
  local found = {}
  for name in pairs(names) do
    local info = redis.call('GET', q.P .. 'w:' .. name)
    if info then
      G.append(found, name, info)
    end
  end
  return found
end

G.export('workers', { 'no-writes' }, function(q)
  local names = {}
  for _, name in ipairs(redis.call('ZRANGE', q.workers, -WORKERS_MAX, -1)) do names[name] = true end
  for _, consumer in ipairs((G.consumers(q, G.GROUP))) do names[consumer[STREAM_CONSUMER.name]] = true end
  return registered(q, names)
end)

-- A worker that has given up waiting for its calls must not receive jobs from them.
G.export('invalidate', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  G.remove_older(q.invalidated, now - INVALIDATED_MS)
  redis.call('ZADD', q.invalidated, G.int(now), r.token)
  return 1
end)

G.export('leave', { 'allow-oom' }, function(q, r)
  local consumer, group = r.consumer, r.group
  redis.call('UNLINK', q.P .. 'w:' .. consumer)
  redis.call('ZREM', q.workers, consumer)
  if #G.pcall('XPENDING', q.stream, group, '-', '+', 1, consumer) > 0 then return 0 end
  G.stalled_policy.forget(q, consumer)
  G.pcall('XGROUP', 'DELCONSUMER', q.stream, group, consumer)
  -- A wake-up marker consumed by this worker must wake another one.
  G.wake(q, 1)
  return 1
end)

G.export('pass_wake_up', { 'allow-oom' }, function(q)
  G.wake(q, 1)
  return 1
end)
