-- reprioritize, redelay, promote: change when a job that has not started runs.
-- KEYS 1 meta   ARGV 1 id [, 2 priority | delay ms]
-- -> 'ok' | 'no_op' | 'gone' | 'held' (a peer's worker has read it) | 'lost' (not in the place of its state, or
-- deeper in a list or stream than the search goes) | the state that does not allow it
-- reprioritize: waiting, prioritized, delayed. redelay: the same. promote: delayed.
-- The new place is written first, then the record; the old place is removed last. Bound: core/find_waiting.lua.

-- Move the job to the place given by `priority` and `due`, and write further fields of its record.
local function move(q, id, h, now, priority, due, ...)
  local state, entry = G.place(q, now, {
    id = id, name = h.name or '', priority = priority, lifo = h.lifo == '1', due = due,
  })
  redis.call('HSET', q.J .. id, 'state', state, 'eid', entry, ...)
  return state
end

-- Move the job from stream or list into the scheduled set. Return the reply.
local function leave_ready(q, id, h, now, priority, due, ...)
  local place = G.waiting_place(q, id, h)
  if not place then return 'lost' end
  if place.held then return 'held' end
  move(q, id, h, now, priority, due, ...)
  G.leave_waiting(q, id, place)
  return 'ok'
end

-- Return the job's priority and time in the scheduled set.
local function scheduled_at(q, id)
  return G.band_of(redis.call('ZSCORE', q.scheduled, id))
end

local function make_ready(q, id, h, now, priority, ...)
  if move(q, id, h, now, priority, nil, ...) == 'waiting' then redis.call('ZREM', q.scheduled, id) end
  return 'ok'
end

-- ------------------------------------------------------------------ priority

local PRIORITY = {}

PRIORITY.waiting = function(q, id, h, now, priority)
  if G.count_of(h.priority) == priority then return 'no_op' end
  return leave_ready(q, id, h, now, priority, nil, 'priority', G.int(priority))
end

-- Keep its time: it is ordered by it among the jobs with the new priority.
local function rescore(q, id, priority, at)
  redis.call('ZADD', q.scheduled, G.scheduled_score(priority, at), id)
  redis.call('HSET', q.J .. id, 'priority', G.int(priority))
  G.wake(q, 1)
  return 'ok'
end

PRIORITY.prioritized = function(q, id, h, now, priority)
  local before, at = scheduled_at(q, id)
  if not before then return 'lost' end
  if before == priority then return 'no_op' end
  if priority > 0 then return rescore(q, id, priority, at) end
  return make_ready(q, id, h, now, 0, 'priority', '0')
end

PRIORITY.delayed = function(q, id, _, _, priority)
  local before, at = scheduled_at(q, id)
  if not before then return 'lost' end
  if before == priority then return 'no_op' end
  return rescore(q, id, priority, at)
end

-- ------------------------------------------------------------------ delay

local DELAY = {}

DELAY.waiting = function(q, id, h, now, delay)
  if delay == 0 then return 'no_op' end
  return leave_ready(q, id, h, now, G.count_of(h.priority), now + delay, 'delay', G.int(delay))
end

DELAY.prioritized = function(q, id, h, now, delay)
  if delay == 0 then return 'no_op' end
  return DELAY.delayed(q, id, h, now, delay)
end

DELAY.delayed = function(q, id, h, now, delay)
  local priority = scheduled_at(q, id)
  if not priority then return 'lost' end
  if delay == 0 then return make_ready(q, id, h, now, priority, 'delay', '0') end
  move(q, id, h, now, priority, now + delay, 'delay', G.int(delay))
  return 'ok'
end

-- ------------------------------------------------------------------ calls

local function change(rules, event, field)
  return function(keys, args)
    local q, id, value = G.queue(keys[1]), args[1], G.count_of(args[2])
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

G.export('reprioritize', { 'allow-oom' }, change(PRIORITY, 'priority-changed', 'priority'))
G.export('redelay', { 'allow-oom' }, change(DELAY, 'delay-changed', 'delay'))
G.export('promote', { 'allow-oom' }, change({ delayed = DELAY.delayed }, 'promoted'))
