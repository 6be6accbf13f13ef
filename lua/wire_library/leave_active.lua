-- Return an active job without counting its attempt.
-- glidemq_moveActiveToDelayed: delay it.   KEYS 1 job, 2 stream, 3 scheduled, 4 events
--   ARGV 1 id, 2 entry id, 3 now, 4 delayed until (not before now), 5 group, 6 new data ('' = keep), 7 broadcast
--   -> 'ok' | 'error:not_found' | 'error:not_active'
-- glidemq_moveToWaitingChildren: let it wait for its children.
--   KEYS 1 job, 2 stream, 3 events   ARGV 1 id, 2 entry id, 3 group, 4 now, 5 broadcast
--   -> 'ok' | 'completed' (no child is open; the job is ready again) | 'error:not_found' | 'error:not_active'
-- glidemq_deferActive: push it to the end of the stream.
--   KEYS 1 stream, 2 job, 3 list-active   ARGV 1 id, 2 entry id, 3 group, 4 broadcast   -> 1 done | 0 no such job
-- Bound: constant.
local W = G.W

-- Return the job, its entry acknowledged, if the call is for its current attempt; else nil and the reply.
W.leave_active = function(q, id, entry, group, broadcast)
  local h = G.job_of(q, id)
  if not h.state then return nil, 'error:not_found' end
  if h.state ~= 'active' then return nil, 'error:not_active' end
  local acked = W.ack(q, group, entry, broadcast)
  if not broadcast and not W.is_current(h, entry, acked) then return nil, 'error:not_active' end
  if entry == '' then G.untrack_list_job(q, id) end
  redis.call('HDEL', q.J .. id, 'stalledCount', 'suspectLimit')
  return h
end

G.export('moveActiveToDelayed', { 'allow-oom' }, function(keys, args)
  local id, entry, now, group, broadcast = args[1], args[2], G.num(args[3]), args[5], args[7] == '1'
  local q = W.job_queue(keys[1], id)
  local h, rejection = W.leave_active(q, id, entry, group, broadcast)
  if not h then return rejection end
  local due = math.max(now, G.clamped_time(args[4]))
  local delay = G.text(due - now)
  -- A subscription's delay is its own: the job must not be delivered to the others again.
  local member = broadcast and id .. '||' .. group or id
  redis.call('ZADD', q.scheduled, G.scheduled_score(h.priority, due), member)
  redis.call('HSET', keys[1], 'state', 'delayed', 'delay', delay)
  if G.given(args[6]) then redis.call('HSET', keys[1], 'data', args[6]) end
  W.free_slot_unless_ordered(q, id, h, now)
  G.emit(q.events, 'delay-changed', id, 'delay', delay)
  W.wake(q)
  return 'ok'
end)

-- A job without children has none to wait for.
G.export('moveToWaitingChildren', { 'allow-oom' }, function(keys, args)
  local id, entry = args[1], args[2]
  local q = W.job_queue(keys[1], id)
  local h, rejection = W.leave_active(q, id, entry, args[3], args[5] == '1')
  if not h then return rejection end
  local now = G.num(args[4])
  redis.call('HSET', keys[1], 'state', 'waiting-children')
  G.flows.wait(q, id, now)
  W.free_slot_unless_ordered(q, id, h, now)
  if G.flows.open(q, id) <= 0 then
    G.flows.release(q, id, now)
    return 'completed'
  end
  G.emit(q.events, 'waiting-children', id)
  return 'ok'
end)

G.export('deferActive', { 'allow-oom' }, function(keys, args)
  local id, entry = args[1], args[2]
  local q = W.job_queue(keys[2], id)
  W.ack(q, args[3], entry, args[4] == '1')
  if entry == '' then
    W.untrack_popped(q, id)
    G.untrack_list_job(q, id)
  end
  local h = G.job_of(q, id)
  if not h.state then return 0 end
  if G.TERMINAL[h.state] and args[4] ~= '1' then return 0 end
  G.make_waiting(q, id, h.name)
  return 1
end)
