-- Track jobs fetched from a list: they have no pending stream entry. The protocol only counts them (`list-active`). So
-- that recovery needs no scan, the set `list-active-ids` (core/active_list_jobs.lua) holds the active ones, and
--   P:list-popped  zset: those popped and not yet activated, score = server time of the pop
local W = G.W

W.track_popped = function(q, ids)
  if #ids > 0 then redis.call('ZADD', q.list_popped, unpack(G.scored(ids, G.int(G.now(q))))) end
end

W.untrack_popped = function(q, id)
  redis.call('ZREM', q.list_popped, id)
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
