-- Track jobs fetched from a list: they have no pending stream entry. The protocol only counts them (`list-active`). Two
-- sets of ours hold their ids, so that recovery needs no scan:
--   P:list-popped  zset: popped and not yet activated, score = server time of the pop
--   P:list-taken   set: activated from a list and not yet finished
local W = G.W

W.track_popped = function(q, ids)
  if #ids == 0 then return end
  local now, add = G.int(G.now(q)), {}
  for i = 1, #ids do
    add[2 * i - 1] = now
    add[2 * i] = ids[i]
  end
  redis.call('ZADD', q.P .. 'list-popped', unpack(add))
end

W.untrack_popped = function(q, id)
  redis.call('ZREM', q.P .. 'list-popped', id)
end

W.track_list_jobs = function(q, id)
  redis.call('SADD', q.P .. 'list-taken', id)
end

-- The counter never goes below zero.
W.untrack_list_job = function(q, id)
  redis.call('SREM', q.P .. 'list-taken', id)
  G.untrack_list_job(q, id)
end

-- Return whether an active job is counted in `list-active`. `src` shows it if this library activated the job; otherwise
-- the protocol's rule applies: active jobs that are LIFO or have a priority.
W.from_list = function(h)
  if h.src then return h.src == 'l' end
  return h.lifo == '1' or G.count_of(h.priority) > 0
end

-- Pop up to `count` ids from the right end of a list.
W.pop = function(q, key, count)
  local ids = redis.call('RPOP', key, G.int(count)) or {}
  W.track_popped(q, ids)
  return ids
end
