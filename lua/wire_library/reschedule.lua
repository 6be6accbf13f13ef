-- glidemq_promoteJob: make a delayed job ready.   KEYS 1 job, 2 stream, 3 scheduled, 4 events   ARGV 1 id
--   -> 'ok' | 'error:not_found' | 'error:not_delayed'
-- glidemq_changeDelay: change the delay.         KEYS as above   ARGV 1 id, 2 delay ms, 3 now, 4 group
-- glidemq_changePriority: change the priority.   KEYS as above   ARGV 1 id, 2 priority, 3 group
--   -> 'ok' | 'no_op' | 'error:not_found' | 'error:invalid_delay' | 'error:invalid_priority' | 'error:invalid_state' |
--   'error:not_in_scheduled' | 'error:not_in_stream' (also: a worker has already read the entry)
-- Bound: 5,000 entries of the stream.
local W = G.W

-- Return the job's entry: the one named by its record, else one made in the millisecond in which the job was added,
-- else one found in the first pages of the stream.
W.find_entry = function(q, id, eid, timestamp)
  if eid == '' then return nil end
  local known = eid and G.find_entry(q, id, eid) or timestamp and G.find_entry(q, id, nil, timestamp)
  if known then return known end
  return W.find_in_stream(q.stream, function(job, entry) return job == id and entry or nil end)
end

-- Remove a waiting job's entry from the stream, unless a worker has read it.
local function leave_stream(q, id, h, group)
  local entry = W.find_entry(q, id, h.eid, h.timestamp)
  if not entry or G.is_pending(q, entry, group or '') then return false end
  redis.call('XDEL', q.stream, entry)
  return true
end

local function set(q, id, score, ...)
  redis.call('ZADD', q.scheduled, score, id)
  G.set(q, id, 'eid', '', ...)
  W.wake(q)
end

local function to_stream(q, id, h)
  redis.call('ZREM', q.scheduled, id)
  G.make_waiting(q, id, h.name)
end

G.export('promoteJob', { 'allow-oom' }, G.for_operators(function(keys, args)
  local id = args[1]
  local q = W.job_queue(keys[1], id)
  local h = G.job_of(q, id)
  if not h.state then return 'error:not_found' end
  if h.state ~= 'delayed' then return 'error:not_delayed' end
  redis.call('ZREM', q.scheduled, id)
  W.make_ready(q, id, h, G.count_of(h.priority))
  G.set(q, id, 'delay', '0')
  G.emit(q.events, 'promoted', id)
  return 'ok'
end))

local DELAY = {}

DELAY.delayed = function(q, id, h, c)
  local band = G.band_of(redis.call('ZSCORE', q.scheduled, id))
  if not band then return 'error:not_in_scheduled' end
  if c.delay > 0 then
    set(q, id, G.scheduled_score(band, c.now + c.delay), 'state', 'delayed', 'delay', G.text(c.delay))
  elseif band > 0 then
    set(q, id, G.scheduled_score(band, 0), 'state', 'prioritized', 'delay', '0')
  else
    to_stream(q, id, h)
    G.set(q, id, 'delay', '0')
  end
  return 'ok'
end

DELAY.waiting = function(q, id, h, c)
  if c.delay == 0 then return 'no_op' end
  if not leave_stream(q, id, h, c.group) then return 'error:not_in_stream' end
  set(q, id, G.scheduled_score(h.priority, c.now + c.delay), 'state', 'delayed', 'delay', G.text(c.delay))
  return 'ok'
end

DELAY.prioritized = function(q, id, h, c) return c.delay == 0 and 'no_op' or DELAY.delayed(q, id, h, c) end

local PRIORITY = {}

PRIORITY.waiting = function(q, id, h, c)
  if c.priority == 0 then return 'no_op' end
  if not leave_stream(q, id, h, c.group) then return 'error:not_in_stream' end
  set(q, id, G.scheduled_score(c.priority, 0), 'state', 'prioritized', 'priority', G.text(c.priority))
  return 'ok'
end

local function rescore(q, id, c)
  local band, at = G.band_of(redis.call('ZSCORE', q.scheduled, id))
  if not band then return 'error:not_in_scheduled' end
  set(q, id, G.scheduled_score(c.priority, at), 'priority', G.text(c.priority))
  return 'ok'
end

PRIORITY.prioritized = function(q, id, h, c)
  if c.priority > 0 then return rescore(q, id, c) end
  if not redis.call('ZSCORE', q.scheduled, id) then return 'error:not_in_scheduled' end
  to_stream(q, id, h)
  G.set(q, id, 'priority', '0')
  return 'ok'
end

PRIORITY.delayed = function(q, id, _, c) return rescore(q, id, c) end

local function change(keys, id, rules, c, event, value)
  local q = W.job_queue(keys[1], id)
  local h = G.job_of(q, id)
  if not h.state then return 'error:not_found' end
  local rule = rules[h.state]
  if not rule then return 'error:invalid_state' end
  local outcome = rule(q, id, h, c)
  if outcome == 'ok' then G.emit(q.events, event, id, event == 'delay-changed' and 'delay' or 'priority', G.text(value)) end
  return outcome
end

G.export('changeDelay', { 'allow-oom' }, G.for_operators(function(keys, args)
  local delay = tonumber(args[2])
  if not delay or delay ~= delay or delay < 0 then return 'error:invalid_delay' end
  local c = { delay = G.duration(delay), now = G.num(args[3]), group = args[4] }
  return change(keys, args[1], DELAY, c, 'delay-changed', delay)
end))

G.export('changePriority', { 'allow-oom' }, G.for_operators(function(keys, args)
  local priority = tonumber(args[2])
  if not priority or priority ~= priority or priority < 0 then return 'error:invalid_priority' end
  local c = { priority = G.priority_of(priority), group = args[3] }
  return change(keys, args[1], PRIORITY, c, 'priority-changed', priority)
end))
