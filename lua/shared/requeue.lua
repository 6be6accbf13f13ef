-- Back to the ready source a job came from, as good as new: its attempt is void (a new fence), no attempt is spent.
-- Callers take it out of its old place afterwards, so that a place that cannot be written loses nothing.

G.requeue = function(q, id, now, name, priority, lifo)
  local key = q.J .. id
  local state, entry = G.place(q, now, { id = id, name = name or '', priority = priority, lifo = lifo })
  G.bump(key, 'fence')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  redis.call('HSET', key, 'state', state, 'eid', entry)
end
