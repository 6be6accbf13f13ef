-- repair_group, repair_counters: the repairs of check_group and check_counters, checked again in the same step.
-- KEYS 1 meta   ARGV 1 packed group | counters (as for the check)
-- repair_group    -> packed kinds repaired; its parked jobs are started
-- repair_counters -> packed names of the counters set
-- Bound: as for the check.

local GROUP_PROBLEM = G.rows.group_problem
local WRONG_COUNTER = G.rows.wrong_counter
local C = G.checks
local M = G.groups

-- Move the next sequence past sequences without a job; mark later gaps as skipped.
local function close_gaps(g, v)
  for _, seq in ipairs(v.missing) do
    if not v.jump or seq >= v.jump then redis.call('HSET', g.key, 'skip:' .. G.int(seq), '1') end
  end
  if v.jump then redis.call('HSET', g.key, 'nextSeq', G.int(v.jump)) end
end

G.export('repair_group', { 'allow-oom' }, G.for_operators(function(q, r)
  local v, kinds = C.check_group(q, r), {}
  if not v or #v.rows == 0 then return kinds end
  local name = r.name
  if v.counter then redis.call('HSET', q.ordering, name, G.int(v.counter)) end
  if v.slots then redis.call('HSET', v.g.key, 'active', G.int(v.slots)) end
  if v.missing then close_gaps(v.g, v) end
  for i, row in ipairs(v.rows) do kinds[i] = row[GROUP_PROBLEM.kind] end
  M.uncache(q, name)
  M.promote_parked(q, M.group(q, name), G.now(q))
  G.wake(q, 1)
  return kinds
end))

G.export('repair_counters', { 'allow-oom' }, G.for_operators(function(q, r)
  local names = {}
  for i, row in ipairs(C.find_wrong_counters(q, r)) do
    names[i] = row[WRONG_COUNTER.name]
    if names[i] == 'wake-channels' then
      G.restore_channels(q)
    elseif names[i] == 'fair-waiting' then
      redis.call('HSET', q.fair_state, 'waiting', G.int(row[WRONG_COUNTER.expected]))
    else
      redis.call('SET', names[i] == 'id' and q.id or q.list_active, G.int(row[WRONG_COUNTER.expected]))
    end
  end
  return names
end))
