-- Return a job to the ready source it came from. Its attempt is void (a new fence) and not counted. Callers remove it
-- from its old place afterwards, so that nothing is lost if the new place cannot be written.

-- h: name, priority, lifo, fairKey, groupKey, orderingSeq, slot, state, suspectLimit. to_front: put it before
-- the other jobs of its source. Return the group of an ordered job: the job is now at its head, and the caller starts the
-- group's next jobs. Nil for a suspect (features/stalled_jobs/suspects.lua).
G.return_job = function(q, id, now, h, to_front)
  local key = q.J .. id
  if G.suspects.belongs(q, h) then
    G.suspects.add(q, id, h)
    G.bump(key, 'fence')
    redis.call('HDEL', key, 'processedOn', 'lastActive')
    return nil
  end
  if h.groupKey then
    local g = G.groups.return_to_head(q, id, h)
    G.bump(key, 'fence')
    redis.call('HDEL', key, 'processedOn', 'lastActive')
    return g
  end
  local state, entry = G.place(q, now, {
    id = id, name = h.name or '', priority = G.count_of(h.priority), lifo = h.lifo == '1', rank = h.rank,
    fair = h.fairKey, first = to_front,
  })
  G.bump(key, 'fence')
  redis.call('HDEL', key, 'processedOn', 'lastActive')
  redis.call('HSET', key, 'state', state, 'eid', entry)
  G.note_state(q, id, state, now)
  return nil
end
