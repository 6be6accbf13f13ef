-- obliterate: delete a queue with every key, in bounded steps.
-- KEYS 1 meta   ARGV 1 packed {force, batch}   -> packed {status, deleted jobs}
-- status: 'more' (call again), 'done', 'active' (force is off and jobs are active; nothing was changed, and the
-- number is the count of active jobs)
-- Jobs are found through the indexes, so no key of another queue is read. The client then deletes the jobs that no
-- index names (waiting-children, groups) by a SCAN bounded to this queue's own hash tag. Bound: `batch` jobs.
-- A key of a foreign type names no job; it is deleted with the rest.

-- Delete groups, found through their sequence counters: return parked jobs first, then delete the group itself.
local function group_ids(q, count)
  local names, ids, groups = redis.call('HSCAN', q.ordering, 0, 'COUNT', 50)[2], {}, 0
  for i = 1, #names, 2 do
    local parked = q.P .. 'groupq:' .. names[i]
    local found = redis.call('ZRANGE', parked, 0, count - #ids - 1)
    if #found > 0 then
      redis.call('ZREM', parked, unpack(found))
      for _, id in ipairs(found) do ids[#ids + 1] = id end
      if #ids >= count then break end
    else
      redis.call('UNLINK', parked, q.P .. 'group:' .. names[i], q.P .. 'orderdone:pending:' .. names[i])
      redis.call('HDEL', q.ordering, names[i])
      groups = groups + 1
    end
  end
  return ids, groups
end

local function first_ids(q, count)
  local sets = { q.completed, q.failed, q.scheduled, q.suspended, q.list_active_ids, q.waiting_children, q.suspects }
  for _, key in ipairs(sets) do
    local ids = redis.pcall('ZRANGE', key, 0, count - 1)
    if #ids > 0 then
      redis.call('ZREM', key, unpack(ids))
      return ids
    end
  end
  for _, key in ipairs({ q.lifo, q.priority }) do
    local ids = redis.pcall('LRANGE', key, 0, count - 1)
    if #ids > 0 then
      redis.call('LTRIM', key, #ids, -1)
      return ids
    end
  end
  local ids, entries = {}, {}
  for _, e in ipairs(redis.pcall('XRANGE', q.stream, '-', '+', 'COUNT', count)) do
    entries[#entries + 1] = e[1]
    ids[#ids + 1] = G.entry_job(e[2])
  end
  G.settle_entries(q, entries)
  return ids, #entries
end

local function active_count(q)
  local pending = redis.pcall('XPENDING', q.stream, G.GROUP)
  local from_stream = type(pending[1]) == 'number' and pending[1] or 0
  local from_lists = redis.pcall('GET', q.list_active)
  local active = from_stream + (type(from_lists) == 'string' and math.max(0, G.count_of(from_lists)) or 0)
  for _, group in ipairs(G.subscriptions.names(q)) do active = active + G.subscriptions.in_hand(q, group) end
  return active
end

G.export('obliterate', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local active = r[1] and 0 or active_count(q)
  if active > 0 then return cmsgpack.pack({ 'active', active }) end
  local ids, entries = first_ids(q, r[2])
  if #ids == 0 and (entries or 0) == 0 then ids, entries = group_ids(q, r[2]) end
  G.purge(q, ids)
  if #ids > 0 or (entries or 0) > 0 then return cmsgpack.pack({ 'more', #ids }) end
  local P = q.P
  for _, consumer in ipairs(redis.pcall('ZRANGE', q.workers, 0, -1)) do
    redis.call('UNLINK', P .. 'w:' .. consumer)
  end
  redis.call('UNLINK', q.id, q.stream, q.scheduled, q.completed, q.failed, q.events, q.meta, q.lifo, q.priority,
    q.list_active, q.list_active_ids, q.wake, q.workers, q.stall_watch, q.metrics_completed, q.metrics_failed,
    q.suspended, P .. 'dedup', P .. 'dedup-expiry', P .. 'rate', P .. 'schedulers', P .. 'ordering', P .. 'ratelimited',
    P .. 'schedulers:lock:__tick__', P .. 'suspended:lock:__sweep__', P .. 'lock:reclaim',
    P .. 'list-popped', P .. 'list-taken', q.retired,
    q.outbox, P .. 'lock:outbox', q.writes, q.waiting_children, P .. 'flows', q.schedulers_own, q.schedulers_due,
    P .. 'children-watch', q.remote_parents, q.remote_children, P .. 'lock:remote', q.group_watch,
    P .. 'lock:groups', q.schedulers_ended, P .. 'lock:schedules', q.suspects, q.suspect_host, q.losses)
  return cmsgpack.pack({ 'done', 0 })
end)
