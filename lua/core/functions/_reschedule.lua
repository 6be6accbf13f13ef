-- Change when a job that has not started runs: for change_priority, change_delay and promote. The new place is written
-- first, then the record; the old place is removed last. Bound: core/find_waiting.lua.
local R = G.rescheduling

-- Move the job to the place given by `priority` and `due`. The variable arguments are further fields of its record.
R.move = function(q, id, h, now, priority, due, ...)
  h.priority = priority
  local state = G.put(q, id, now, h, due, h.state == 'delayed')
  G.set(q, id, ...)
  return state
end

-- Move the job from stream or list into the scheduled set. Return the reply.
R.leave_ready = function(q, id, h, now, priority, due, ...)
  local place = G.waiting_place(q, id, h)
  if not place then return 'lost' end
  if place.held then return 'held' end
  R.move(q, id, h, now, priority, due, ...)
  -- With another priority, a job stays in the set of its fair key.
  if not place.fair or due then G.leave_waiting(q, id, place) end
  return 'ok'
end

-- Return the job's priority and time in the scheduled set, or in that of the jobs with a fair key.
R.scheduled_at = function(q, id, h)
  if h.fairKey then
    local at = redis.call('ZSCORE', q.fair_delayed, id)
    if at then return G.count_of(h.priority), tonumber(at) end
  end
  return G.band_of(redis.call('ZSCORE', q.scheduled, id))
end

R.make_ready = function(q, id, h, now, priority, ...)
  if R.move(q, id, h, now, priority, nil, ...) == 'waiting' then G.unschedule(q, id) end
  return 'ok'
end

-- Return the function to export. rules: by state, each returns 'ok' or the reason why nothing was changed. event: the
-- event to emit, with the new value in `field`.
R.call = function(rules, event, field)
  return function(q, r)
    local id, value = r.id, G.count_of(field and r[field])
    local h = G.job_of(q, id)
    if not h.state then return 'gone' end
    local rule = rules[h.state]
    if not rule then return h.state end
    local reply = rule(q, id, h, G.now(q), value)
    if reply == 'ok' then
      if field then G.emit(q.events, event, id, field, G.int(value)) else G.emit(q.events, event, id) end
    end
    return reply
  end
end
