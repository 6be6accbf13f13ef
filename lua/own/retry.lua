-- retry: a failed job runs again, with all its attempts.
-- KEYS 1 meta   ARGV 1 id   -> 'ok' | 'gone' | the state that does not allow it (only `failed` does, W40)
-- The mark of a revocation goes (W41); what is past its expiry gets no second life here and fails again.

G.export('retry', {}, function(keys, args)
  local q, id = G.queue(keys[1]), args[1]
  local key, now = q.J .. id, G.now(q)
  local h = redis.call('HMGET', key, 'state', 'priority', 'name', 'lifo', 'groupKey')
  if not h[1] then return 'gone' end
  if h[1] ~= 'failed' then return h[1] end
  local state, entry = G.place(q, now, {
    id = id, name = h[3] or '', priority = G.count_of(h[2]), lifo = h[4] == '1',
  })
  redis.call('HDEL', key, 'revoked', 'stalledCount', 'failedType', 'stacktrace', 'processedOn', 'lastActive')
  if h[5] then redis.call('HSET', key, 'slot', '0') end -- it takes a slot of its group anew (W6)
  redis.call('HSET', key, 'state', state, 'eid', entry, 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
  redis.call('ZREM', q.failed, id)
  G.emit(q.events, 'retried', id)
  return 'ok'
end)
