-- change_priority: change the priority of a waiting, prioritized or delayed job.
-- KEYS 1 meta   ARGV 1 id, 2 priority (0 = none)
-- -> 'ok' | 'no_op' | 'gone' | 'held' (a peer's worker has read it) | 'lost' (not in the place of its state, or
-- deeper in a list or stream than the search goes) | the state that does not allow it
-- A ready job goes behind the ready jobs of its new priority, a delayed job keeps its due time.
-- Bound: core/find_waiting.lua.
local R = G.rescheduling
local PRIORITY = {}
R.priority = PRIORITY

PRIORITY.waiting = function(q, id, h, now, priority)
  if G.count_of(h.priority) == priority then return 'no_op' end
  return R.leave_ready(q, id, h, now, priority, nil, 'priority', G.int(priority))
end

-- Keep its due time.
local function rescore(q, id, h, priority, at)
  if not h.fairKey then redis.call('ZADD', q.scheduled, G.scheduled_score(priority, at), id) end
  G.set(q, id, 'priority', G.int(priority))
  G.wake(q, 1)
  return 'ok'
end

PRIORITY.prioritized = function(q, id, h, now, priority)
  local before = R.scheduled_at(q, id, h)
  if not before then return 'lost' end
  if before == priority then return 'no_op' end
  return R.make_ready(q, id, h, now, priority, 'priority', G.int(priority))
end

PRIORITY.delayed = function(q, id, h, _, priority)
  local before, at = R.scheduled_at(q, id, h)
  if not before then return 'lost' end
  if before == priority then return 'no_op' end
  return rescore(q, id, h, priority, at)
end

-- A job with a rank of its own set loses it.
local function change(q, id, h, now, priority)
  if G.ranks.of(h.rank) then return G.ranks.move(q, id, h, now, priority) end
  return PRIORITY[h.state](q, id, h, now, priority)
end

local RULES = { waiting = change, prioritized = change, delayed = change }

G.export('change_priority', { 'allow-oom' }, G.for_operators(R.call(RULES, 'priority-changed', 'priority')))
