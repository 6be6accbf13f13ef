-- change_delay: change when a waiting, prioritized or delayed job becomes due.
-- KEYS 1 meta   ARGV 1 id, 2 delay ms from now (0 = ready)
-- promote: make a delayed job ready.   KEYS 1 meta   ARGV 1 id
-- -> 'ok' | 'no_op' | 'gone' | 'held' (a peer's worker has read it) | 'lost' (not in the place of its state, or
-- deeper in a list or stream than the search goes) | the state that does not allow it
-- Bound: core/find_waiting.lua.
-- due_times: return when jobs are due.
-- KEYS 1 meta   ARGV 1 packed {ids}   -> packed list of epoch ms, 0 = the job is not delayed
-- A job with a priority that is due is delayed until a worker fetches it. Bound: IDS_MAX ids.

local R = G.rescheduling
local DELAY = {}

-- The same for a job with a rank of its own set: its old place differs from the new one.
local function change_ranked(q, id, h, now, delay)
  local key, member = G.ranks.place_of(q, id, h)
  if not redis.call('ZSCORE', key or q.scheduled, member or id) then return 'lost' end
  local due = delay > 0 and now + delay or nil
  R.move(q, id, h, now, G.count_of(h.priority), due, 'delay', G.int(delay))
  if key ~= q.delayed_own or not due then redis.call('ZREM', key or q.scheduled, member or id) end
  return 'ok'
end

DELAY.waiting = function(q, id, h, now, delay)
  if delay == 0 then return 'no_op' end
  return R.leave_ready(q, id, h, now, G.count_of(h.priority), now + delay, 'delay', G.int(delay))
end

DELAY.prioritized = function(q, id, h, now, delay)
  if delay == 0 then return 'no_op' end
  return DELAY.delayed(q, id, h, now, delay)
end

DELAY.delayed = function(q, id, h, now, delay)
  if G.ranks.of(h.rank) then return change_ranked(q, id, h, now, delay) end
  local priority = R.scheduled_at(q, id, h)
  if not priority then return 'lost' end
  if delay == 0 then return R.make_ready(q, id, h, now, priority, 'delay', '0') end
  R.move(q, id, h, now, priority, now + delay, 'delay', G.int(delay))
  return 'ok'
end

-- Make a delayed job ready. Return the same as the rules.
R.promote = function(q, id, h, now) return DELAY.delayed(q, id, h, now, 0) end

G.export('change_delay', { 'allow-oom' }, G.for_operators(R.call(DELAY, 'delay-changed', 'delay')))
G.export('promote', { 'allow-oom' }, G.for_operators(R.call({ delayed = DELAY.delayed }, 'promoted')))

local IDS_MAX = 1000

local function due_time(q, id)
  local h = G.pick(q.J .. id, 'state', 'rank', 'fairKey', 'priority')
  if h.state ~= 'delayed' then return 0 end
  if G.ranks.of(h.rank) then
    local at = redis.call('ZSCORE', q.delayed_own, id)
    if at then return G.count_of(at) end
  end
  local _, due = R.scheduled_at(q, id, h)
  return due or 0
end

G.export('due_times', { 'no-writes' }, function(q, r)
  if #r.ids > IDS_MAX then error('too many ids: ' .. #r.ids) end
  local times = {}
  for i, id in ipairs(r.ids) do
    local ok, due = G.attempt(due_time, q, id)
    times[i] = ok and due or 0
  end
  return times
end)
