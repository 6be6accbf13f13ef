-- Back to the ready source a job came from, as good as new: its attempt is void (a new fence), no attempt is spent.
-- Callers take it out of its old place afterwards, so that a place that cannot be written loses nothing.

-- h: name, priority, lifo, groupKey, orderingSeq, slot, state, suspectLimit. Returns the group of a job that has one: it
-- stands at the head of it now, and the caller lets it go on. Nil for a suspect (suspects.lua).
G.requeue = function(q, id, now, h)
  local key = q.J .. id
  if G.suspects.belongs(q, h) then
    G.suspects.add(q, id, h)
    G.bump(key, 'fence')
    redis.call('HDEL', key, 'processedOn', 'lastActive')
    return nil
  end
  if h.groupKey then
    local g = G.groups.come_back(q, id, h)
    G.bump(key, 'fence')
    redis.call('HDEL', key, 'processedOn', 'lastActive')
    return g
  end
  local state, entry = G.place(q, now, {
    id = id, name = h.name or '', priority = G.count_of(h.priority), lifo = h.lifo == '1',
  })
  G.bump(key, 'fence')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  redis.call('HSET', key, 'state', state, 'eid', entry)
  return nil
end
