-- A failed job as good as new: all its attempts before it, no mark of a revocation (W41) or of stalls, and its slot
-- in its group to be taken anew (W6).

-- h: name, priority, lifo, groupKey of a job that has failed. The caller takes it out of the index of failed jobs.
G.retry_failed = function(q, id, now, h)
  local key = q.J .. id
  G.flows.child_ended(q, id, G.flows.AGAIN, '', now)
  local state, entry = 'waiting-children', ''
  if G.flows.open(q, id) > 0 then
    G.flows.wait(q, id, now)
  else
    state, entry = G.place(q, now, {
      id = id, name = h.name or '', priority = G.count_of(h.priority), lifo = h.lifo == '1',
    })
  end
  redis.call('HDEL', key, 'revoked', 'stalledCount', 'fallbackIndex', 'failedType', 'stacktrace', 'processedOn',
    'lastActive', 'childFailed')
  if h.groupKey then redis.call('HSET', key, 'slot', '0') end
  redis.call('HSET', key, 'state', state, 'eid', entry, 'attemptsMade', '0', 'failedReason', '', 'finishedOn', '')
end
