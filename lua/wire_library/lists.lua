-- Jobs taken from a list have no stream entry that pends for them. The protocol only counts them (`list-active`);
-- two sets of ours remember which they are, so that recovery needs no scan (W15, W54):
--   P:list-popped  zset: popped and not yet activated, score = server time of the pop
--   P:list-taken   set: activated from a list and not yet finished
local W = G.W

W.list_popped = function(q, ids)
  if #ids == 0 then return end
  local now, add = G.int(G.now(q)), {}
  for i = 1, #ids do
    add[2 * i - 1] = now
    add[2 * i] = ids[i]
  end
  redis.call('ZADD', q.P .. 'list-popped', unpack(add))
end

W.list_arrived = function(q, id)
  redis.call('ZREM', q.P .. 'list-popped', id)
end

W.list_taken = function(q, id)
  redis.call('SADD', q.P .. 'list-taken', id)
end

-- LDECR: guarded, never below zero.
W.list_left = function(q, id)
  redis.call('SREM', q.P .. 'list-taken', id)
  G.list_left(q, id)
end

-- Whether an active job holds a place in `list-active`. `src` says so where this library activated it (W37);
-- else the rule of the protocol: active jobs that are LIFO or have a priority.
W.from_list = function(h)
  if h.src then return h.src == 'l' end
  return h.lifo == '1' or G.count_of(h.priority) > 0
end

-- Pop up to `count` from a list on the right.
W.pop = function(q, key, count)
  local ids = redis.call('RPOP', key, G.int(count)) or {}
  W.list_popped(q, ids)
  return ids
end
