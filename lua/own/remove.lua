-- remove: delete a job wherever it stands, with every key of its own and its place in stream, set or list.
-- KEYS 1 meta   ARGV 1 id   -> 1 removed, 0 there was none
-- An active job is removed too: its worker's next call answers `gone`.
-- Bound: O(1), but for a job that sits in a list (LREM) or that a Node peer pushed (its entry id is not known: the
-- entry is acknowledged when a worker meets it).

-- `eid` is the last entry a job had; it may be long gone, and the job in a list since.
local function has_entry(q, entry, id)
  if not entry or entry == '' then return false end
  local found = redis.pcall('XRANGE', q.stream, entry, entry)
  return not found.err and found[1] ~= nil and G.entry_job(found[1][2]) == id
end

G.export('remove', { 'allow-oom' }, function(keys, args)
  local q, id = G.queue(keys[1]), args[1]
  local key = q.J .. id
  local h = redis.call('HMGET', key, 'state', 'eid', 'lifo', 'priority')
  if not h[1] then return 0 end
  if has_entry(q, h[2], id) then
    G.settle_entries(q, { h[2] })
  elseif h[1] == 'active' and (h[3] == '1' or G.count_of(h[4]) > 0) then
    G.list_left(q, id)
  elseif h[1] == 'waiting' then
    redis.call('LREM', q.lifo, 1, id)
    redis.call('LREM', q.priority, 1, id)
  end
  redis.call('ZREM', q.scheduled, id)
  redis.call('ZREM', q.completed, id)
  redis.call('ZREM', q.failed, id)
  redis.call('ZREM', q.suspended, id)
  redis.call('ZREM', q.list_active_ids, id)
  redis.call('HDEL', q.stall_watch, id)
  G.purge(q, { id })
  G.emit(q.events, 'removed', id)
  return 1
end)
