-- Back to the ready source a job came from, as good as new: its attempt is void (a new fence), no attempt is spent.

G.requeue = function(q, id, now, name, priority, lifo)
  local key = q.J .. id
  local state, entry = G.place(q, now, { id = id, name = name or '', priority = priority, lifo = lifo })
  redis.call('HINCRBY', key, 'fence', 1)
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  redis.call('HSET', key, 'state', state, 'eid', entry)
end
