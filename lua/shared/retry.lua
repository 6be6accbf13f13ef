-- A failed job as good as new: all its attempts before it, no mark of a revocation (W41) or of stalls, and its slot
-- in its group to be taken anew (W6).

-- h: name, priority, lifo, groupKey of a job that has failed. The caller takes it out of the index of failed jobs.
G.retry_failed = function(q, id, now, h)
  local key = q.J .. id
  local state, entry = G.place(q, now, {
    id = id, name = h.name or '', priority = G.count_of(h.priority), lifo = h.lifo == '1',
  })
  redis.call('HDEL', key, 'revoked', 'stalledCount', 'fallbackIndex', 'failedType', 'stacktrace', 'processedOn',
    'lastActive')
  if h.groupKey then redis.call('HSET', key, 'slot', '0') end
  redis.call('HSET', key, 'state', state, 'eid', entry, 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
end
